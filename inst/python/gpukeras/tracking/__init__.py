"""Records trainings: parameters, metrics of epochs, models and plots, in a folder or in MLflow."""
