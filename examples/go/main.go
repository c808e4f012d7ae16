// Sends a file to agents, and says how each one fared; waits for an object, and says where it lies; says who is in the cluster.
//
//	polycast-example send FILE all|AGENT...
//	polycast-example read NUMBER [SECONDS]
//	polycast-example status
//
// It talks to the agent of this host, at POLYCAST_SOCKET or where the agent of the packages listens.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/polycast/polycast/go/agentv1"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

const protocolVersion = 1

// What the agent says of a failed call for programs: its kind. The status has the sentence for people.
var trailer metadata.MD

type client struct {
	agentv1.AgentClient
	caller *agentv1.Caller
}

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		if kind := trailer.Get("polycast-error"); len(kind) > 0 {
			err = fmt.Errorf("%s: %s", kind[0], status.Convert(err).Message())
		}
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	socket := os.Getenv("POLYCAST_SOCKET")
	if socket == "" {
		socket = "/run/polycast/agent.sock"
	}
	connection, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	// The application is left out: the default one, which the command line uses too.
	agent := client{agentv1.NewAgentClient(connection), &agentv1.Caller{ProcessId: uint64(os.Getpid())}}
	request := &agentv1.RegisterRequest{ProtocolVersion: protocolVersion, Caller: agent.caller}
	if _, err := agent.Register(ctx, request, grpc.Trailer(&trailer)); err != nil {
		return err
	}
	defer agent.Unregister(ctx, &agentv1.UnregisterRequest{Caller: agent.caller})
	switch {
	case len(arguments) >= 3 && arguments[0] == "send":
		return agent.send(ctx, arguments[1], arguments[2:])
	case len(arguments) >= 2 && arguments[0] == "read":
		return agent.read(ctx, arguments[1:])
	case len(arguments) == 1 && arguments[0] == "status":
		return agent.cluster(ctx)
	}
	return errors.New("usage: polycast-example send FILE all|AGENT... | read NUMBER [SECONDS] | status")
}

func (agent client) send(ctx context.Context, file string, receivers []string) error {
	// The agent reads the file where it lies. It is not copied, and must not change.
	path, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	request := &agentv1.SendRequest{Caller: agent.caller, Add: &agentv1.AddRequest{Path: path}}
	if len(receivers) == 1 && receivers[0] == "all" {
		request.All = true
	} else {
		request.Receivers = receivers
	}
	events, err := agent.Send(ctx, request)
	if err != nil {
		return err
	}
	for {
		event, err := events.Recv()
		if err != nil {
			trailer = events.Trailer()
			if err == io.EOF {
				return errors.New("the agent went away")
			}
			return err
		}
		if made := event.GetAdded(); made != nil {
			fmt.Printf("object %d is %s, %d bytes\n", made.DataId, made.Name, made.Length)
		}
		if path := event.GetGranted(); path != nil {
			fmt.Println("over", path.Fabric)
		}
		if report := event.GetFinished(); report != nil {
			return outcome(report)
		}
	}
}

func outcome(report *agentv1.TransferReport) error {
	var failed []string
	for _, receiver := range report.Receivers {
		if receiver.Verified {
			fmt.Printf("%s: verified\n", receiver.Name)
		} else {
			failed = append(failed, fmt.Sprintf("%s: %s", receiver.Name, receiver.Error))
		}
	}
	if len(failed) > 0 {
		return errors.New(strings.Join(failed, "; "))
	}
	return nil
}

func (agent client) read(ctx context.Context, arguments []string) error {
	number, err := strconv.ParseUint(arguments[0], 10, 64)
	if err != nil {
		return err
	}
	request := &agentv1.ReadRequest{Caller: agent.caller, DataId: number}
	if len(arguments) > 1 {
		seconds, err := strconv.ParseUint(arguments[1], 10, 32)
		if err != nil {
			return err
		}
		milliseconds := seconds * 1000
		request.TimeoutMs = &milliseconds
	}
	object, err := agent.Read(ctx, request, grpc.Trailer(&trailer))
	if err != nil {
		return err
	}
	fmt.Printf("%s, %d bytes, in %s\n", object.Name, object.Length, object.Path)
	return nil
}

func (agent client) cluster(ctx context.Context) error {
	request := &agentv1.StatusRequest{ProtocolVersion: protocolVersion}
	manager, err := agent.ManagerStatus(ctx, request, grpc.Trailer(&trailer))
	if err != nil {
		return err
	}
	var names []string
	for _, one := range manager.Status.Agents {
		names = append(names, one.Name)
	}
	fmt.Printf("manager %s: %s\n", manager.ManagerAddress, strings.Join(names, ", "))
	return nil
}
