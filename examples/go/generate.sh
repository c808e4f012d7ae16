#!/bin/sh
# Makes the client's code out of Polycast's protos: generate.sh [FOLDER OF PROTOS]
#
# It takes protoc, and what `go install` brings into $(go env GOPATH)/bin:
#   go install google.golang.org/protobuf/cmd/protoc-gen-go@v1.36.11
#   go install google.golang.org/grpc/cmd/protoc-gen-go-grpc@v1.6.2
set -eu
cd "$(dirname "$0")"
protos=${1:-/usr/share/polycast/proto}
module=github.com/polycast/polycast/go
PATH=$PATH:$(go env GOPATH)/bin
mkdir -p generated
protoc -I "$protos" \
    --go_out=generated --go_opt=module=$module --go-grpc_out=generated --go-grpc_opt=module=$module \
    "$protos"/polycast/agent/v1/*.proto "$protos"/polycast/manager/v1/status.proto
# go.mod has this folder in place of the module.
printf 'module %s\n\ngo 1.24\n' $module > generated/go.mod
