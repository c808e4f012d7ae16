#!/bin/sh
# Sends a file or folder to agents, and says how each one fared; copies an object out of this host's agent; says which agents the cluster
# has. It needs polycast and jq.
#
#   polycast-example.sh send FILE|FOLDER all|AGENT,AGENT...
#   polycast-example.sh get NAME|NUMBER PATH
#   polycast-example.sh status
#
# POLYCAST_SOCKET names the agent's socket where it is not the usual one. With --json each command prints one JSON document on its standard
# output. Of a command that fails this is {"error": SENTENCE, "kind": WORD}, and the sentence is on standard error too.
set -eu

case "${1-} $#" in
"send 3")
    # Where a receiver has failed the status is 1, and the report names it.
    status=0
    report=$(polycast send "$2" --to "$3" --json) || status=$?
    printf '%s' "$report" | jq -r 'select(.receivers) |
        "object \(.object) is \(.name), \(.bytes) bytes", "over \(.fabric)",
        (.receivers[] | "\(.name): \(if .verified then "verified" else .reason end)")'
    exit $status
    ;;
"get 3")
    got=$(polycast get "$2" --out "$3" --json)
    printf '%s' "$got" | jq -r '"\(.name), \(.bytes) bytes, in \(.path)"'
    ;;
"status 1")
    status=$(polycast status --json)
    printf '%s' "$status" | jq -r '"manager \(.manager): \([.peers[].name] | join(", "))"'
    ;;
*)
    sed -n '5,7s/^# */usage: /p' "$0" >&2
    exit 1
    ;;
esac
