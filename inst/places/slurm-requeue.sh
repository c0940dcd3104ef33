#!/bin/bash
# Trainings that are longer than a job may be, and that survive preemption: sbatch slurm-requeue.sh
# Each task of the array is one training, whose train.R has
#
#     kept <- list(folder = paste0("run-", Sys.getenv("SLURM_ARRAY_TASK_ID")), grace_s = 120)
#     gpu_fit(model, train, checkpoint = kept)
#
# or many models, gpu_fit_many(train, build, checkpoint = kept), or a search, gpu_tune(train, build,
# rate = tune_range(1e-4, 1e-1), folder = kept), of which each task draws its own with its own seed.
#
#SBATCH --job-name=train
#SBATCH --array=1-3
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
#SBATCH --open-mode=append
# Two minutes before the time is up, to the tasks that srun starts; this script gets none.
#SBATCH --signal=TERM@120
set -u

# Where this script gets the signal too (a preemption, scancel), it waits for srun all the same.
trap : TERM

srun --cpus-per-task="$SLURM_CPUS_PER_TASK" Rscript train.R
status=$?

# 75: the training is saved, and is to go on. 143: R was ended outside of a training.
if [ "$status" -eq 75 ] || [ "$status" -eq 143 ]; then
    job=$SLURM_JOB_ID
    if [ -n "${SLURM_ARRAY_JOB_ID:-}" ]; then
        job=${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID
    fi
    scontrol requeue "$job"
fi
exit "$status"
