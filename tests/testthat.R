library(testthat)
library(gpukeras)

test_check("gpukeras")
