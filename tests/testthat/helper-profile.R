# What the core reports of a profile.

an_op <- function(name, type, count, total_s, share) {
  list(name = name, type = type, count = count, total_s = total_s, share = share)
}

a_layer_time <- function(layer, kind, forward_s, backward_s, share) {
  list(
    layer = layer, kind = kind, forward_s = forward_s, backward_s = backward_s,
    total_s = forward_s + backward_s, share = share
  )
}

some_advice <- function() {
  list(
    list(
      id = "batch_size", text = "Train with larger batches: 64 to 512.",
      why = "Launching takes 78 % of the step, whatever the batch size.", gain = 3.4,
      apply = list(batch_size = 512L), measured = NULL
    ),
    list(
      id = "engine", text = "Let gpukeras choose the engine.",
      why = "Keras' own function is called for each batch.", gain = 12,
      apply = list(engine = "auto", batch_size = 512L), measured = 10.2
    ),
    list(
      id = "precision", text = "Try mixed precision.", why = "The GPU has it.", gain = NULL,
      apply = list(), measured = NULL
    )
  )
}

# Two steps: Python, then two lanes of ops.
a_timeline <- function() {
  bar <- function(lane, name, kind, begin_ms, end_ms) {
    list(lane = lane, name = name, kind = kind, begin_s = begin_ms / 1e3, end_s = end_ms / 1e3)
  }
  step <- function(at) {
    list(
      bar("main", "train", "host", at, at + 2.2),
      bar("CPU thread 1", "sequential/dense/MatMul:MatMul", "kernel", at + 1, at + 1.6),
      bar("CPU thread 1", "adam/update (+ 8)", "kernel", at + 1.7, at + 2.1),
      bar("CPU thread 2", "gradient_tape/sequential/dense/MatMul", "kernel", at + 1.4, at + 1.9),
      bar("copies", "MemcpyH2D", "transfer", at + 0.8, at + 1)
    )
  }
  c(step(0), step(2.5))
}

a_profile_record <- function(...) {
  record <- list(
    verdict = "launch-bound",
    sentence = "Preparing and launching work takes 78 % of a step (compute 18 %, input 4 %).",
    decided_by = list(name = "launch", value = 0.777, threshold = 0.183),
    device = "CPU:0", engine = "keras", reason = "as asked", batch_size = 64L, steps = 20L,
    step_s = 0.00234, samples_per_s = 27350.4,
    shares = list(input = 0.04, host = 0.7, kernels = 0.18, transfers = 0.003, idle = 0.077),
    ops = list(
      an_op("gradient_tape/sequential_1/dense_1/MatMul/MatMul_1", "MatMul", 1, 1.2e-4, 0.285),
      an_op("sequential_1/dense_1/MatMul", "MatMul", 1, 9e-5, 0.214),
      an_op("adam/AssignSubVariableOp", "AssignSubVariableOp", 4.5, 2.1e-5, 0.05)
    ),
    layers = list(
      a_layer_time("dense", "Dense", 1e-4, 2e-4, 0.712),
      a_layer_time("dense_1", "Dense", 2e-5, 3e-5, 0.118),
      a_layer_time("optimizer", "", 5e-5, 0, 0.118),
      a_layer_time("loss and metrics", "", 2.2e-5, 0, 0.052)
    ),
    kernels = list(), bytes = NULL,
    input = list(
      real_s = 0.00234, wait_s = 9.4e-5, repeated_s = 0.00225, alone_s = 2.1e-4,
      speedup_if_free = 1.04,
      stages = list(
        list(stage = "gather", batch_s = 1.5e-4, share = 0.714, what = "rows of a block"),
        list(stage = "cast", batch_s = 6e-5, share = 0.286, what = "features as floats")
      )
    ),
    advice = some_advice(), timeline = a_timeline(), trace = "",
    notes = list("Steps are slower while they are traced.")
  )
  changes <- list(...)
  record[names(changes)] <- changes
  record
}

a_profile <- function(...) new_gpu_profile(a_profile_record(...))

# A trace that says nothing: only the clock's numbers are there.
an_undetermined_profile <- function() {
  a_profile(
    verdict = "undetermined", sentence = "The trace is empty: the profiler had no permission.",
    decided_by = list(name = "trace", value = NULL, threshold = NULL),
    shares = list(input = 0.04, host = NULL, kernels = NULL, transfers = NULL, idle = NULL),
    ops = list(), layers = list(), advice = list(), timeline = list()
  )
}

# Of a GPU, with kernels, copies and an input that is slow.
a_gpu_profile <- function() {
  a_profile(
    verdict = "input-bound", sentence = "The device waits for rows in 62 % of a step.",
    decided_by = list(name = "input", value = 0.62, threshold = 0.28),
    device = "GPU:0", engine = "compiled", reason = "measured fastest", batch_size = 1024L,
    step_s = 0.0123, samples_per_s = 83252, trace = "logs/profile",
    shares = list(input = 0.62, host = 0.05, kernels = 0.28, transfers = 0.02, idle = 0.03),
    peak = list(
      card = "NVIDIA A10", dtype = "tf32", tflops = 62.5, source = "NVIDIA A10 data sheet",
      reached = 13.1, share = 0.2096
    ),
    kernels = list(an_op("ampere_sgemm_128x64_nt", "", 12, 0.0021, 0.61)),
    bytes = list(to_device = 3.2 * 2^20, to_host = 96),
    input = list(
      real_s = 0.0123, wait_s = 0.0076, repeated_s = 0.0047, alone_s = 0.0121,
      speedup_if_free = 2.6, stages = list()
    )
  )
}
