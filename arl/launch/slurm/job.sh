
# Made by `arl train --launcher slurm`. The controller runs here, on the first node of the job. It starts engines and
# trainer ranks as steps on all nodes. You may change this file, and submit it by `sbatch`.

# A job that was requeued goes on with its own run, if that has a checkpoint.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -s "$ARL_RUN_POINTER" ]; then
    run=$(cat "$ARL_RUN_POINTER")
    if compgen -G "$run/checkpoints/step_*" >/dev/null; then
        recipe=("$run/recipe.yaml" --resume)
    fi
fi

# bash waits in `wait` alone for a signal: SIGTERM is passed on, and the controller saves a checkpoint and ends.
"${arl[@]}" "${recipe[@]}" &
controller=$!
trap 'kill -TERM "$controller" 2>/dev/null' TERM
while :; do
    wait "$controller"
    code=$?
    [ "$code" -eq 143 ] && kill -0 "$controller" 2>/dev/null || break
done

if [ "$code" -eq 137 ]; then
    echo "arl: controller (pid $controller on $SLURMD_NODENAME) was killed by SIGKILL: out of memory, or by somebody"
fi

# Exit code 3: the run has failed. A job with --no-kill outlives its nodes: if no step starts on all of them any more,
# that is why, and the job begins again without them. As long as slurmctld does not answer, nothing is requeued either.
if [ "$code" -eq 3 ] && ! timeout 60 srun --overlap --mem=0 --nodes="$SLURM_JOB_NUM_NODES" --ntasks-per-node=1 true; then
    echo "arl: a node does not answer; the job is requeued, and goes on from the last checkpoint"
    scontrol requeue "$SLURM_JOB_ID" && sleep 60 # until Slurm ends this script
fi
exit "$code"
