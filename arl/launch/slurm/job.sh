#!/bin/bash
@@headers
# Made by `arl train --launcher slurm`. The controller runs here, on the first node of the job. It starts engines and
# trainer ranks as steps on all nodes. You may change this file, and submit it by `sbatch`.

export @@pointer_name=@@pointer
arl=(@@arl)
recipe=(@@first)

# A job that was requeued goes on with its own run, if that has a checkpoint.
if [ "${SLURM_RESTART_COUNT:-0}" -gt 0 ] && [ -s "$@@pointer_name" ]; then
    run=$(cat "$@@pointer_name")
    if compgen -G "$run/checkpoints/step_*" >/dev/null; then
        recipe=("$run/recipe.yaml" --resume)
    fi
fi

# A job with --no-kill lives on when a node fails, so that a run loses an engine at most. It would also live on without
# this node, with nobody at work. So two other nodes look whether Slurm still counts this one, and requeue the job.
others=$((SLURM_JOB_NUM_NODES - 1))
here=(--exclude="$SLURMD_NODENAME")
watchers=$((others < 2 ? others : 2))
if [ "$watchers" -gt 0 ]; then
    srun --overlap --mem=0 --no-kill --nodes="$watchers" --ntasks="$watchers" --ntasks-per-node=1 "${here[@]}" \
        --export=PATH,SLURM_CONF,ARL_WATCH_SECONDS /bin/bash -c '
        while sleep "${ARL_WATCH_SECONDS:-30}"; do
            left=$(squeue --noheader --jobs="$1" --format=%N | xargs --no-run-if-empty -n1 scontrol show hostnames)
            [ -z "$left" ] || grep -qx "$2" <<<"$left" && continue
            echo "arl: controller on $2 is lost: Slurm does not reach node $2; job $1 is requeued" >>"$3"
            scontrol requeue "$1"
        done' watch "$SLURM_JOB_ID" "$SLURMD_NODENAME" "$(dirname "$@@pointer_name")/job.log" &>>"$(dirname "$@@pointer_name")/watch.log" &
fi

# bash waits in `wait` alone for a signal: SIGTERM is passed on, and the controller saves a checkpoint and ends.
"${arl[@]}" "${recipe[@]}" &
controller=$!

# A controller that is stopped (SIGSTOP) would hold the nodes until the time limit. Its engines and ranks end when they
# have heard nothing of it for two minutes, and then it ends as well.
(
    stopped=0
    while sleep "${ARL_WATCH_SECONDS:-30}" && state=$(sed "s/.*) //; s/ .*//" "/proc/$controller/stat" 2>/dev/null); do
        [ "$state" = T ] && stopped=$((stopped + 1)) || stopped=0
        if [ "$stopped" -ge 5 ]; then
            echo "arl: controller (pid $controller on $SLURMD_NODENAME) is stopped by a signal, SIGSTOP?, and ends here"
            kill -KILL "$controller"
        fi
    done
) &
trap 'kill -TERM "$controller" 2>/dev/null' TERM
while :; do
    wait "$controller"
    code=$?
    [ "$code" -eq 143 ] && kill -0 "$controller" 2>/dev/null || break
done

# A controller that was killed says nothing any more. Its steps end with it, but a stopped srun has to go on for that.
if [ "$code" -eq 137 ]; then
    echo "arl: controller (pid $controller on $SLURMD_NODENAME) was killed by SIGKILL: out of memory, or by somebody"
    for process in /proc/[0-9]*; do
        grep -qxz "SLURM_JOB_ID=$SLURM_JOB_ID" "$process/environ" && [ "$(cat "$process/comm")" = srun ] &&
            kill -CONT "${process#/proc/}"
    done 2>/dev/null
fi

# Exit code 3: the run has failed. If not all nodes answer any more, that is why, and the job begins again without them.
# Only what slurmctld says counts: as long as it does not answer, squeue prints nothing and no step starts.
if [ "$code" -eq 3 ]; then
    asked=(--nodes="$SLURM_JOB_NUM_NODES" --nodelist="$SLURM_JOB_NODELIST")
    num_nodes_left() { # Slurm takes failed nodes away
        for _ in {1..12}; do
            counts=$(timeout 60 squeue --noheader --jobs="$SLURM_JOB_ID" --format=%D | paste -sd+)
            [ -n "$counts" ] && echo $((counts)) && return
            sleep 10
        done
        return 1
    }
    all_answer() {
        timeout 60 srun --overlap --mem=0 "${asked[@]}" --ntasks-per-node=1 --export=NONE /bin/true
    }
    if ! left=$(num_nodes_left); then
        echo "arl: slurmctld does not say which nodes the job still has, so the job is not requeued"
    elif [ "$left" -le "$others" ] || { ! all_answer && num_nodes_left >/dev/null && ! all_answer; }; then
        echo "arl: a node does not answer; the job is requeued, and goes on from the last checkpoint"
        scontrol requeue "$SLURM_JOB_ID"
        sleep 60 # until Slurm ends this script
    fi
fi
exit "$code"
