test_that("a card is waited for where there is one", {
  skip_without_tensorflow()
  skip_if(any(gpu_devices()$kind == "GPU"), "there is a GPU")
  expect_snapshot(error = TRUE, {
    gpu_setup(wait = "8 GiB")
    gpu_setup(wait = list(gib = 8))
    gpu_setup(wait = NA)
    gpu_setup(device = "cpu", wait = 8)
  })
})

test_that("the reason to wait is told once", {
  listen <- waiting_listener()
  expect_snapshot({
    listen("GPU:0 is used by another user's process.")
    listen("GPU:0 is used by another user's process.")
    listen("GPU:0 has 3.2 GiB free, and 8.0 are needed.")
  })
})
