# Process 1 of a machine of a lab, in namespaces of its own: mounts what a node has, then waits for the end of children
# that lost their parents. Everything that it writes to is in memory and goes with the mount namespace.
#
#   machine.sh NAME DIRECTORY     (an empty directory)
set -eu
hostname "$1"
# A kubelet's containers see what is mounted later.
mount --make-rshared /
mount -t tmpfs -o mode=755 machine "$2"
cd "$2"
mkdir -p etc/new etc/work var/lib/kubelet var/lib/containerd var/log/pods var/log/containers opt/cni/bin run sysctl
ln -s /run var/run
mount -t overlay -o lowerdir=/etc,upperdir="$2/etc/new",workdir="$2/etc/work" etc /etc
rm -rf /etc/cni /etc/containerd
for dir in opt run var; do mount --bind "$dir" "/$dir"; done

mount -t sysfs sysfs /sys
mount -t tmpfs -o mode=755 cgroup /sys/fs/cgroup
while IFS=: read -r _ controllers _; do
  case $controllers in
    "") kind=cgroup2 dir=unified options=rw ;;
    name=*) kind=cgroup dir=${controllers#name=} options=none,$controllers ;;
    *) kind=cgroup dir=$controllers options=$controllers ;;
  esac
  mkdir "/sys/fs/cgroup/$dir"
  mount -t "$kind" -o "$options" cgroup "/sys/fs/cgroup/$dir"
done </proc/self/cgroup
mount -t bpf bpf /sys/fs/bpf

# What a kubelet sets for a whole machine it sets in these files: the kernel's stay as they are.
for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys \
  kernel/keys/root_maxbytes; do
  file=sysctl/${key//\//.}
  cat "/proc/sys/$key" >"$file"
  mount --bind "$file" "/proc/sys/$key"
done

trap 'exit 0' TERM
touch /run/machine-is-up
# Bash reaps whatever ends meanwhile.
while :; do sleep 3600 & wait $!; done
