#!/bin/bash
# A Slurm of two computers, train-1 and train-2, on one: runs a batch script in it, and ends as the
# batch script ends.
#
#     unshare --mount --net --uts --pid --fork --kill-child --mount-proc slurm_cluster.sh FOLDER SCRIPT
#
# train-2 has a network and a name of its own, joined to train-1 by a veth pair. FOLDER takes
# all files, SCRIPT's output as `output`; with the namespace all processes end.
set -eu
cd "$1"
folder=$PWD

start_network() {
    printf '127.0.0.1 localhost\n10.77.0.1 train-1\n10.77.0.2 train-2\n' >hosts
    mount --bind hosts /etc/hosts
    hostname train-1
    unshare --net --uts sleep infinity &
    second=$!
    while [ "$(readlink /proc/$second/ns/uts)" = "$(readlink /proc/self/ns/uts)" ]; do sleep 0.1; done
    ip link add name veth1 type veth peer name veth2
    ip link set dev veth2 netns $second
    start_interface 1
    on_second start_interface 2
}

start_interface() {
    ip address add "10.77.0.$1/24" dev "veth$1"
    ip link set dev "veth$1" up
    ip link set dev lo up
}

on_second() { nsenter --target $second --net --uts bash -c "$(declare -f start_interface); $*"; }

write_settings() {
    cat >slurm.conf <<END
ClusterName=places
SlurmctldHost=train-1(10.77.0.1)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket,cred_expire=10
CredType=cred/munge
SlurmUser=root
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool-%n
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd-%n.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
GresTypes=gpu
NodeName=train-1 NodeAddr=10.77.0.1 CPUs=16 Gres=gpu:2
NodeName=train-2 NodeAddr=10.77.0.2 CPUs=16 Gres=gpu:2
PartitionName=all Nodes=ALL Default=YES State=UP
END
    # Other devices in place of GPUs: Slurm counts and lends them.
    ln -sf /dev/null gpu0
    ln -sf /dev/zero gpu1
    echo "NodeName=train-[1-2] Name=gpu File=$folder/gpu[0-1]" >gres.conf
}

start_munge() {
    head -c 1024 /dev/urandom >munge/key
    chmod 400 munge/key
    munged --force --socket="$folder/munge/socket" --key-file="$folder/munge/key" \
        --pid-file="$folder/munge/pid" --log-file="$folder/munge/log" \
        --seed-file="$folder/munge/seed"
}

start_network
mkdir -p state spool-train-1 spool-train-2 munge
write_settings
start_munge
export SLURM_CONF=$folder/slurm.conf
slurmctld
slurmd -N train-1
on_second slurmd -N train-2
for _ in $(seq 100); do
    if [ "$(sinfo --noheader --format=%D%t)" = 2idle ]; then break; fi
    sleep 0.3
done
sbatch --wait --output="$folder/output" "$2"
