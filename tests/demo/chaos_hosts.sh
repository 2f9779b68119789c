# chaos_hosts.sh - part of chaos.sh: four hosts of each of its jobs, network namespaces on a bridge, whose links are cut and
# heal, and a fifth whose agent takes the place of one that is gone. Sourced; $seat is the job's number, from 1.
make_hosts() { # make_hosts SEAT
    seat=$1
    ip link add "b$seat" type bridge && ip link set "b$seat" up && ip addr add "10.77.$seat.1/24" dev "b$seat" || return 1
    for k in 1 2 3 4 5; do
        ip netns add "c${seat}h$k" && ip link add "v$seat-$k" type veth peer name eth0 netns "c${seat}h$k" &&
            ip link set "v$seat-$k" master "b$seat" up && ip -n "c${seat}h$k" addr add "10.77.$seat.1$k/24" dev eth0 &&
            ip -n "c${seat}h$k" link set eth0 up && ip -n "c${seat}h$k" link set lo up || return 1
    done
    {
        cat "$job"
        printf 'launch = ssh\nshell = ip netns exec %%h sh -c\nbind = 10.77.%s.1\n' "$seat"
        printf 'hosts = c%sh1,c%sh2,c%sh3,c%sh4\n' "$seat" "$seat" "$seat" "$seat"
    } >"$root/hosts-$seat.conf"
}

processes_of_hosts() { for k in 1 2 3 4 5; do ip netns pids "c${seat}h$k"; done; }

agents_of_hosts() { # agents_of_hosts [NODE]
    for pid in $(processes_of_hosts); do
        { tr '\0' ' ' <"/proc/$pid/cmdline"; } 2>/dev/null | grep -q "^[^ ]*keel agent --join .*${1:+--node $1 }" && echo "$pid"
    done
}

kill_hosts() {
    for try in 1 2 3; do
        living=$(processes_of_hosts)
        # shellcheck disable=SC2086
        [ -z "$living" ] || kill -KILL $living 2>/dev/null
    done
}

heal_hosts() { for k in 1 2 3 4 5; do ip link set "v$seat-$k" up; done; }

# cut_hosts HOST...: their networks are gone for a tenth to five timeouts, while the schedule goes on.
cut_hosts() {
    draw 50
    log "cut hosts $* for $drawn tenths of a timeout"
    for k; do ip link set "v$seat-$k" down; done
    (
        sleep "$(awk "BEGIN { print ($drawn + 1) * $timeout / 10 }")"
        for k; do ip link set "v$seat-$k" up; done
    ) &
}

# An agent of another host waits for the place of one that is gone.
join_host() {
    place=$(sed -n 's/.*agents dial in at \([^ ]*\).*/\1/p' "$root/$name.log" | tail -n 1)
    [ -n "$place" ] || return
    led=$(sed 's/.* //' "$root/$name/ckpt/.leader/leader" 2>/dev/null)
    log "join from another host"
    ip netns exec "c${seat}h5" "$KEEL" agent --join "$place${led:+,$led}" --key-file "$root/$name/job.key" --wait 5 >/dev/null 2>&1 &
}
