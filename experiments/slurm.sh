#!/usr/bin/env bash
# An example job array: 16 machines share one store, each takes cells as they come, and helps with the last ones.
#
#     sbatch --export=ALL,OUT=/shared/results experiments/slurm.sh --name=all --scale=paper
#
# Submitted again it goes on where it was: a job that was killed gave its cell back, finished chunks and
# checkpoints are kept. Where workers can't see each other's files, deal the cells out beforehand with
# --worker=$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT, a store each, and copy the stores' folders together.
# Each job's log is results/logs/sweep_<job>_<task>.log in the repository.
#SBATCH --job-name=audit
#SBATCH --array=1-16
#SBATCH --gpus=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=32G
#SBATCH --time=24:00:00
#SBATCH --signal=INT@60
#SBATCH --requeue
#SBATCH --output=/dev/null
set -euo pipefail

cd -- "${SLURM_SUBMIT_DIR:?submit this with sbatch, in the repository}"
mkdir -p results/logs
exec >>"results/logs/sweep_${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID.log" 2>&1
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK # which srun does not take over by itself
srun ./run.sh sweep --out="${OUT:-results}" "$@" # --signal reaches steps only: without srun nobody
