#!/bin/bash
# Four workers of one training on two computers: sbatch slurm.sh
# In train.R, gpu_cluster() without arguments reads Slurm's variables.
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=2
#SBATCH --gpus-per-task=1
#SBATCH --cpus-per-task=8
#SBATCH --time=04:00:00
#SBATCH --requeue
set -eu

GPUKERAS_SECRET=$(openssl rand -hex 32)
export GPUKERAS_SECRET

# A lost worker ends the others by itself, with an error that names it.
srun --label --kill-on-bad-exit=0 --wait=120 --distribution=block \
    --cpus-per-task="$SLURM_CPUS_PER_TASK" Rscript train.R
