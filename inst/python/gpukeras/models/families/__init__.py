"""Statistical families: last layers and losses of `gpu_mlp(family = )`, and what they predict."""
