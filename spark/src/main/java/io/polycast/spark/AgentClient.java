package io.polycast.spark;

import com.google.protobuf.ByteString;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import io.netty.bootstrap.Bootstrap;
import io.netty.channel.epoll.Epoll;
import io.netty.channel.epoll.EpollDomainSocketChannel;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.unix.DomainSocketAddress;
import io.netty.util.concurrent.DefaultThreadFactory;
import io.netty.util.internal.logging.InternalLoggerFactory;
import io.netty.util.internal.logging.JdkLoggerFactory;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.UUID;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;
import java.util.function.Function;
import java.util.logging.Level;
import java.util.logging.Logger;
import io.polycast.agent.v1.AgentGrpc;
import io.polycast.agent.v1.AgentGrpc.AgentBlockingStub;
import io.polycast.agent.v1.AgentOuterClass.AddRequest;
import io.polycast.agent.v1.AgentOuterClass.RegisterRequest;
import io.polycast.agent.v1.AgentOuterClass.RemoveRequest;
import io.polycast.agent.v1.AgentOuterClass.RemoveResponse;
import io.polycast.agent.v1.AgentOuterClass.StatusRequest;
import io.polycast.agent.v1.AgentOuterClass.StatusResponse;
import io.polycast.agent.v1.AgentOuterClass.UnregisterRequest;
import io.polycast.agent.v1.AgentOuterClass.WithdrawRequest;
import io.polycast.agent.v1.Objects.FetchEvent;
import io.polycast.agent.v1.Objects.FetchRequest;
import io.polycast.agent.v1.Types.Caller;

/**
 * Connection of this process to the agent of its host. It is opened on first use, and again when the agent
 * comes back.
 */
final class AgentClient {
  /** Protocol version of this jar; the agent refuses any other than its own. */
  static final int PROTOCOL_VERSION = 1;

  private static final Metadata.Key<String> KIND =
      Metadata.Key.of("polycast-error", Metadata.ASCII_STRING_MARSHALLER);
  private static final long CALL_S = 30;
  /** Longest message of an agent: its status lists all of its transfers. */
  private static final int MESSAGE_LEN_MAX = 256 << 20;
  /**
   * Logger of Netty's warning that a Unix socket does not know all options of a TCP one. This reference keeps
   * its level in effect.
   */
  private static final Logger QUIET = Logger.getLogger(Bootstrap.class.getName());

  static {
    // Only the log of the shaded Netty.
    InternalLoggerFactory.setDefaultFactory(JdkLoggerFactory.INSTANCE);
    QUIET.setLevel(Level.SEVERE);
  }

  private final Path socket;
  private final Caller caller;
  private ManagedChannel channel;
  private EpollEventLoopGroup loop;
  private String agent;

  AgentClient(Path socket, UUID app) {
    this.socket = socket;
    ByteBuffer id = ByteBuffer.allocate(16).putLong(app.getMostSignificantBits()).putLong(app.getLeastSignificantBits());
    // Processes in containers may have the same process id, so the number is drawn.
    long process = ThreadLocalRandom.current().nextLong(Long.MAX_VALUE);
    caller = Caller.newBuilder().setAppId(ByteString.copyFrom(id.array())).setProcessId(process).build();
  }

  /** Registers this process if necessary, and returns the agent's name. */
  synchronized String register() throws Refusal {
    if (agent == null) {
      RegisterRequest request =
          RegisterRequest.newBuilder().setProtocolVersion(PROTOCOL_VERSION).setCaller(caller).build();
      agent = run(stub -> stub.register(request)).getAgentName();
    }
    return agent;
  }

  StatusResponse status() throws Refusal {
    StatusRequest request = StatusRequest.newBuilder().setProtocolVersion(PROTOCOL_VERSION).build();
    return call(stub -> stub.status(request));
  }

  /** Makes a file known under this number; repeating it for the same file is no error. */
  void add(long data, Path path, String name) throws Refusal {
    AddRequest.Builder request = AddRequest.newBuilder().setCaller(caller).setDataId(data);
    call(stub -> stub.add(request.setPath(path.toAbsolutePath().toString()).setName(name).build()));
  }

  /** Ends the transfers of an object; it is no error if there are none. */
  void withdraw(long data) throws Refusal {
    try {
      call(stub -> stub.withdraw(WithdrawRequest.newBuilder().setCaller(caller).setDataId(data).build()));
    } catch (Refusal refusal) {
      if (!refusal.kind.equals("request-unknown")) {
        throw refusal;
      }
    }
  }

  /** Removes objects at these agents, or at all agents if none is named. */
  RemoveResponse remove(List<Long> data, List<String> agents) throws Refusal {
    RemoveRequest.Builder request = RemoveRequest.newBuilder().setCaller(caller).addAllDataIds(data);
    return call(stub -> stub.remove(request.addAllAgents(agents).setAll(agents.isEmpty()).build()));
  }

  /** Asks for an object, wherever it is, with this time limit. */
  Fetching fetch(long data, long deadlineMs) throws Refusal {
    register();
    FetchRequest request =
        FetchRequest.newBuilder().setCaller(caller).setDataId(data).setDeadlineMs(deadlineMs).build();
    Fetching fetching = new Fetching();
    AgentGrpc.newStub(channel()).fetch(request, fetching);
    return fetching;
  }

  /** Makes the next call register again, since the agent has forgotten this process. */
  synchronized void forget() {
    agent = null;
  }

  /** Unregisters if the agent can be reached, and closes the connection. */
  synchronized void close() {
    if (channel == null) {
      return;
    }
    if (agent != null) {
      try {
        run(stub -> stub.unregister(UnregisterRequest.newBuilder().setCaller(caller).build()));
      } catch (Refusal refusal) {
        // The agent forgets dead processes by itself.
      }
      agent = null;
    }
    channel.shutdownNow();
    loop.shutdownGracefully(0, 1, TimeUnit.SECONDS);
    channel = null;
  }

  private <T> T call(Function<AgentBlockingStub, T> what) throws Refusal {
    register();
    try {
      return run(what);
    } catch (Refusal refusal) {
      if (!refusal.kind.equals(Refusal.NOT_REGISTERED)) {
        throw refusal;
      }
      forget();
      register();
      return run(what);
    }
  }

  private <T> T run(Function<AgentBlockingStub, T> what) throws Refusal {
    AgentBlockingStub stub = AgentGrpc.newBlockingStub(channel());
    try {
      return what.apply(stub.withDeadlineAfter(CALL_S, TimeUnit.SECONDS));
    } catch (StatusRuntimeException error) {
      throw refusal(error);
    }
  }

  private synchronized ManagedChannel channel() throws Refusal {
    if (!Files.exists(socket)) {
      throw new Refusal(Refusal.NO_AGENT, "there is no agent's socket at " + socket);
    }
    // The agent's answers decide which files are read as objects, so its socket has to be the right one.
    if (Settings.isAnothers(socket)) {
      String why = "another user has put " + socket + " there, in a folder that every user can make or write to: name the agent's socket,"
          + " in a folder of its user's alone, with spark.polycast.socket";
      throw new Refusal(Refusal.NO_AGENT, why);
    }
    if (channel == null) {
      if (!Epoll.isAvailable()) {
        String why = String.valueOf(Epoll.unavailabilityCause());
        throw new Refusal(Refusal.NO_AGENT, "Unix sockets cannot be used by this Java: " + why);
      }
      loop = new EpollEventLoopGroup(1, new DefaultThreadFactory("polycast", true));
      channel = NettyChannelBuilder.forAddress(new DomainSocketAddress(socket.toString()))
          .channelType(EpollDomainSocketChannel.class)
          .eventLoopGroup(loop)
          // Otherwise gRPC sends the socket's path as the authority, which the agent refuses.
          .overrideAuthority("localhost")
          .usePlaintext()
          .maxInboundMessageSize(MESSAGE_LEN_MAX)
          .build();
    }
    // Reconnects at once to an agent that has come back.
    channel.resetConnectBackoff();
    return channel;
  }

  private Refusal refusal(Throwable error) {
    io.grpc.Status status = io.grpc.Status.fromThrowable(error);
    Metadata trailers = io.grpc.Status.trailersFromThrowable(error);
    String kind = trailers == null ? null : trailers.get(KIND);
    if (kind != null) {
      return new Refusal(kind, "the agent refuses: " + status.getDescription());
    }
    return new Refusal(Refusal.NO_AGENT, "the agent at " + socket + " does not answer (" + describe(status) + ")", error);
  }

  private static String describe(io.grpc.Status status) {
    String about = status.getDescription() == null ? "" : ": " + status.getDescription();
    return status.getCode() + about;
  }

  /** A running fetch of an object. */
  final class Fetching implements ClientResponseObserver<FetchRequest, FetchEvent> {
    private final BlockingQueue<Object> events = new LinkedBlockingQueue<>();
    private ClientCallStreamObserver<FetchRequest> call;

    /** Returns the next event, or null if none comes in time. */
    FetchEvent next(long waitMs) throws Refusal, InterruptedException {
      Object event = events.poll(waitMs, TimeUnit.MILLISECONDS);
      if (event instanceof Throwable) {
        throw refusal((Throwable) event);
      }
      return (FetchEvent) event;
    }

    void cancel() {
      call.cancel("the caller waits no more", null);
    }

    @Override
    public void beforeStart(ClientCallStreamObserver<FetchRequest> started) {
      call = started;
    }

    @Override
    public void onNext(FetchEvent event) {
      events.add(event);
    }

    @Override
    public void onError(Throwable error) {
      events.add(error);
    }

    @Override
    public void onCompleted() {
      events.add(io.grpc.Status.UNAVAILABLE.withDescription("it said nothing more").asRuntimeException());
    }
  }
}
