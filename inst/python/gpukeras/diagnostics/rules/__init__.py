"""The causes of an unused GPU as data: a record a cause, its rule a pure function of facts."""
