package io.polycast.example;

import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollDomainSocketChannel;
import io.grpc.netty.shaded.io.netty.channel.epoll.EpollEventLoopGroup;
import io.grpc.netty.shaded.io.netty.channel.unix.DomainSocketAddress;
import io.polycast.agent.v1.AgentGrpc;
import io.polycast.agent.v1.AgentGrpc.AgentBlockingStub;
import io.polycast.agent.v1.AgentOuterClass.AddRequest;
import io.polycast.agent.v1.AgentOuterClass.ManagerStatusResponse;
import io.polycast.agent.v1.AgentOuterClass.ReadRequest;
import io.polycast.agent.v1.AgentOuterClass.ReceiverReport;
import io.polycast.agent.v1.AgentOuterClass.RegisterRequest;
import io.polycast.agent.v1.AgentOuterClass.SendEvent;
import io.polycast.agent.v1.AgentOuterClass.SendRequest;
import io.polycast.agent.v1.AgentOuterClass.StatusRequest;
import io.polycast.agent.v1.AgentOuterClass.TransferReport;
import io.polycast.agent.v1.AgentOuterClass.UnregisterRequest;
import io.polycast.agent.v1.Types.Caller;
import io.polycast.manager.v1.AgentStatus;
import java.nio.file.Path;
import java.util.Iterator;
import java.util.List;
import java.util.logging.Level;
import java.util.logging.Logger;
import java.util.stream.Collectors;

/**
 * Sends a file to agents, and says how each one fared; waits for an object, and says where it lies; says which agents the cluster has.
 *
 * <p>It talks to the agent of this host, at POLYCAST_SOCKET or where the agent of the packages listens.
 */
public final class Example {
  private static final int PROTOCOL_VERSION = 1;
  private static final Metadata.Key<String> KIND =
      Metadata.Key.of("polycast-error", Metadata.ASCII_STRING_MARSHALLER);
  /** The library logs what it finds on this machine, and options of TCP that a Unix socket lacks. It is kept here so that its level stays. */
  private static final Logger QUIET = Logger.getLogger("io.grpc.netty.shaded");

  private final AgentBlockingStub agent;
  /** The application is left out: the default one, which the command line uses too. */
  private final Caller caller = Caller.newBuilder().setProcessId(ProcessHandle.current().pid()).build();

  private Example(AgentBlockingStub agent) {
    this.agent = agent;
  }

  public static void main(String[] arguments) {
    QUIET.setLevel(Level.SEVERE);
    String socket = System.getenv().getOrDefault("POLYCAST_SOCKET", "/run/polycast/agent.sock");
    EpollEventLoopGroup loop = new EpollEventLoopGroup(1);
    // Without an authority of ours the library names the socket's path, which is none that HTTP/2 knows.
    ManagedChannel channel =
        NettyChannelBuilder.forAddress(new DomainSocketAddress(socket))
            .channelType(EpollDomainSocketChannel.class)
            .eventLoopGroup(loop)
            .overrideAuthority("localhost")
            .usePlaintext()
            .build();
    boolean done = false;
    try {
      done = new Example(AgentGrpc.newBlockingStub(channel)).run(List.of(arguments));
    } catch (StatusRuntimeException refused) {
      // The kind is for programs, the description for people.
      String kind = refused.getTrailers() == null ? null : refused.getTrailers().get(KIND);
      System.err.println("error: " + (kind == null ? "" : kind + ": ") + refused.getStatus().getDescription());
    } catch (IllegalArgumentException wrong) {
      System.err.println("error: " + wrong.getMessage());
    } finally {
      channel.shutdownNow();
      loop.shutdownGracefully();
    }
    System.exit(done ? 0 : 1);
  }

  private boolean run(List<String> words) {
    agent.register(RegisterRequest.newBuilder().setProtocolVersion(PROTOCOL_VERSION).setCaller(caller).build());
    try {
      if (words.size() >= 3 && words.get(0).equals("send")) {
        return send(Path.of(words.get(1)), words.subList(2, words.size()));
      }
      if (words.size() >= 2 && words.get(0).equals("read")) {
        return read(words.subList(1, words.size()));
      }
      if (words.equals(List.of("status"))) {
        return status();
      }
      throw new IllegalArgumentException("say send FILE all|AGENT... | read NUMBER [SECONDS] | status");
    } finally {
      agent.unregister(UnregisterRequest.newBuilder().setCaller(caller).build());
    }
  }

  private boolean send(Path file, List<String> receivers) {
    // The agent reads the file where it lies. It is not copied, and must not change.
    AddRequest add = AddRequest.newBuilder().setPath(file.toAbsolutePath().toString()).build();
    SendRequest.Builder request = SendRequest.newBuilder().setCaller(caller).setAdd(add);
    if (receivers.equals(List.of("all"))) {
      request.setAll(true);
    } else {
      request.addAllReceivers(receivers);
    }
    boolean allVerified = false;
    for (Iterator<SendEvent> events = agent.send(request.build()); events.hasNext(); ) {
      SendEvent event = events.next();
      if (event.hasAdded()) {
        System.out.printf(
            "object %s is %s, %d bytes%n",
            Long.toUnsignedString(event.getAdded().getDataId()), event.getAdded().getName(), event.getAdded().getLength());
      }
      if (event.hasGranted()) {
        System.out.println("over " + event.getGranted().getFabric());
      }
      if (event.hasFinished()) {
        allVerified = outcome(event.getFinished());
      }
    }
    return allVerified;
  }

  private static boolean outcome(TransferReport report) {
    for (ReceiverReport receiver : report.getReceiversList()) {
      System.out.println(receiver.getName() + ": " + (receiver.getVerified() ? "verified" : receiver.getError()));
    }
    return report.getReceiversList().stream().allMatch(ReceiverReport::getVerified);
  }

  private boolean read(List<String> words) {
    ReadRequest.Builder request = ReadRequest.newBuilder().setCaller(caller);
    request.setDataId(Long.parseUnsignedLong(words.get(0)));
    if (words.size() > 1) {
      request.setTimeoutMs(Long.parseUnsignedLong(words.get(1)) * 1000);
    }
    var object = agent.read(request.build());
    System.out.printf("%s, %d bytes, in %s%n", object.getName(), object.getLength(), object.getPath());
    return true;
  }

  private boolean status() {
    StatusRequest request = StatusRequest.newBuilder().setProtocolVersion(PROTOCOL_VERSION).build();
    ManagerStatusResponse manager = agent.managerStatus(request);
    List<AgentStatus> agents = manager.getStatus().getAgentsList();
    String names = agents.stream().map(AgentStatus::getName).collect(Collectors.joining(", "));
    System.out.printf("manager %s: %s%n", manager.getManagerAddress(), names);
    return true;
  }
}
