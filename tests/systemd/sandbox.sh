#!/usr/bin/env bash
# Boot a real systemd (PID 1, journald, cgroup v2) in fresh namespaces over a throw-away overlay of this machine's root
# file system, run one command inside it, and tear it down.
#
#   sandbox.sh COMMAND [ARGUMENT...]
#
# The command sees the whole file system; whatever it or a unit writes is discarded at the end. /run and /tmp are empty
# inside but for the current directory, and the network is a private loopback. Needs root. Exit status: the command's own; 125 where systemd could not
# be booted, with the reason on stderr.
set -u
refuse() { echo "$*" >&2; exit 125; }
[ $# -ge 1 ] || refuse "usage: sandbox.sh COMMAND [ARGUMENT...]"
[ "$(id -u)" = 0 ] || refuse "root is needed to boot systemd in namespaces"
for need in /lib/systemd/systemd unshare nsenter ip pgrep; do
  command -v "$need" >/dev/null 2>&1 || refuse "$need is missing (apt-get install systemd dbus util-linux iproute2 procps)"
done

work=$(mktemp -d /var/tmp/ninferd-systemd.XXXXXX)
export SANDBOX_WORK=$work SANDBOX_HERE=$PWD
log=$work/boot.log
cat >"$work/boot" <<'BOOT'
#!/usr/bin/env bash
set -eu
mount --make-rprivate /
mkdir -p "$SANDBOX_WORK/fs" "$SANDBOX_WORK/root"
mount -t tmpfs tmpfs "$SANDBOX_WORK/fs"
mkdir -p "$SANDBOX_WORK/fs/upper" "$SANDBOX_WORK/fs/scratch"
mount -t overlay overlay -o "lowerdir=/,upperdir=$SANDBOX_WORK/fs/upper,workdir=$SANDBOX_WORK/fs/scratch" "$SANDBOX_WORK/root"
# File systems mounted below / are not part of the overlay; bind them, read-only.
awk '$5 != "/" && $5 !~ "^/(proc|sys|dev|run|tmp|var/tmp)(/|$)" {print $5}' /proc/self/mountinfo | while read -r at; do
  [ -d "$at" ] && mkdir -p "$SANDBOX_WORK/root$at" && mount --bind "$at" "$SANDBOX_WORK/root$at" \
    && mount -o remount,bind,ro "$SANDBOX_WORK/root$at" || true
done
cd "$SANDBOX_WORK/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs -o mode=1777 tmpfs tmp
case "$SANDBOX_HERE" in /tmp/* | /run/*)
  mkdir -p "$SANDBOX_WORK/fs/here" "$SANDBOX_WORK/fs/here-scratch" ".$SANDBOX_HERE"
  layers="lowerdir=$SANDBOX_HERE,upperdir=$SANDBOX_WORK/fs/here,workdir=$SANDBOX_WORK/fs/here-scratch"
  mount -t overlay overlay -o "$layers" ".$SANDBOX_HERE"
esac
ip link set lo up
mkdir -p .outside
pivot_root . .outside
umount -l /.outside
rm -f /etc/systemd/system/*.wants/* 2>/dev/null || true
exec env -i container=sandbox PATH=/usr/sbin:/usr/bin:/sbin:/bin \
  /lib/systemd/systemd --system --unit=basic.target --log-target=console --show-status=no
BOOT
chmod +x "$work/boot"

unshare --fork --kill-child --pid --mount --cgroup --uts --ipc --net "$work/boot" >"$log" 2>&1 </dev/null &
outer=$!
inner=
finish() {
  [ -n "$inner" ] && kill -KILL "$inner" 2>/dev/null
  wait "$outer" 2>/dev/null
  rm -rf "$work"
}
trap finish EXIT

inside() { nsenter -t "$inner" -m -p -u -i -n -C "$@"; }
state=
for _ in $(seq 300); do
  inner=$(pgrep -P "$outer" | head -n 1)
  if [ -n "$inner" ] && [ "$(cat /proc/"$inner"/comm 2>/dev/null)" = systemd ]; then
    state=$(inside -- systemctl is-system-running 2>/dev/null)
    case "$state" in running | degraded) break ;; esac
  fi
  kill -0 "$outer" 2>/dev/null || { cat "$log" >&2; refuse "systemd did not start in new namespaces"; }
  sleep 0.1
done
case "$state" in running | degraded) ;; *) cat "$log" >&2; refuse "systemd was not up after 30 s" ;; esac
inside --wdns="$PWD" -- "$@"
