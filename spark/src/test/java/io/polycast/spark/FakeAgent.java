package io.polycast.spark;

import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.NettyServerBuilder;
import io.grpc.stub.StreamObserver;
import io.netty.channel.epoll.EpollEventLoopGroup;
import io.netty.channel.epoll.EpollServerDomainSocketChannel;
import io.netty.channel.unix.DomainSocketAddress;
import java.io.IOException;
import java.nio.file.Path;
import java.util.List;
import java.util.concurrent.CopyOnWriteArrayList;
import io.polycast.agent.v1.AgentGrpc;
import io.polycast.agent.v1.AgentOuterClass.AddRequest;
import io.polycast.agent.v1.AgentOuterClass.RegisterRequest;
import io.polycast.agent.v1.AgentOuterClass.RegisterResponse;
import io.polycast.agent.v1.AgentOuterClass.RemoveRequest;
import io.polycast.agent.v1.AgentOuterClass.RemoveResponse;
import io.polycast.agent.v1.AgentOuterClass.StatusRequest;
import io.polycast.agent.v1.AgentOuterClass.StatusResponse;
import io.polycast.agent.v1.AgentOuterClass.UnregisterRequest;
import io.polycast.agent.v1.AgentOuterClass.UnregisterResponse;
import io.polycast.agent.v1.Objects.FetchEvent;
import io.polycast.agent.v1.Objects.FetchRequest;
import io.polycast.agent.v1.Types.Caller;

/** An agent that follows docs/api.md as far as the tests need it, over a real Unix socket. */
final class FakeAgent extends AgentGrpc.AgentImplBase implements AutoCloseable {
  final List<Caller> registered = new CopyOnWriteArrayList<>();
  final List<AddRequest> added = new CopyOnWriteArrayList<>();
  final List<RemoveRequest> removed = new CopyOnWriteArrayList<>();
  volatile StatusResponse status = StatusResponse.newBuilder().setManagerConnected(true).build();
  volatile int version = AgentClient.PROTOCOL_VERSION;

  private final EpollEventLoopGroup loop = new EpollEventLoopGroup(1);
  private final Server server;

  FakeAgent(Path socket) throws IOException {
    server = NettyServerBuilder.forAddress(new DomainSocketAddress(socket.toString()))
        .channelType(EpollServerDomainSocketChannel.class)
        .bossEventLoopGroup(loop)
        .workerEventLoopGroup(loop)
        .addService(this)
        .build()
        .start();
  }

  /** Returns a refusal in the form that agents use. */
  static StatusRuntimeException refusal(Status status, String kind, String message) {
    Metadata trailers = new Metadata();
    trailers.put(Metadata.Key.of("polycast-error", Metadata.ASCII_STRING_MARSHALLER), kind);
    return status.withDescription(message).asRuntimeException(trailers);
  }

  @Override
  public void register(RegisterRequest request, StreamObserver<RegisterResponse> answer) {
    if (request.getProtocolVersion() != version) {
      String message = "this agent speaks version " + version + " and not " + request.getProtocolVersion();
      answer.onError(refusal(Status.FAILED_PRECONDITION, "version", message));
      return;
    }
    registered.add(request.getCaller());
    answer.onNext(RegisterResponse.newBuilder().setAgentName("fake").build());
    answer.onCompleted();
  }

  @Override
  public void unregister(UnregisterRequest request, StreamObserver<UnregisterResponse> answer) {
    registered.remove(request.getCaller());
    answer.onNext(UnregisterResponse.getDefaultInstance());
    answer.onCompleted();
  }

  @Override
  public void status(StatusRequest request, StreamObserver<StatusResponse> answer) {
    answer.onNext(status);
    answer.onCompleted();
  }

  @Override
  public void add(AddRequest request, StreamObserver<io.polycast.agent.v1.Types.Object> answer) {
    if (!registered.contains(request.getCaller())) {
      answer.onError(refusal(Status.FAILED_PRECONDITION, "not-registered", "the process has not registered"));
      return;
    }
    added.add(request);
    answer.onNext(io.polycast.agent.v1.Types.Object.getDefaultInstance());
    answer.onCompleted();
  }

  @Override
  public void remove(RemoveRequest request, StreamObserver<RemoveResponse> answer) {
    removed.add(request);
    answer.onNext(RemoveResponse.getDefaultInstance());
    answer.onCompleted();
  }

  /** Gives an added object at once; a call for any other object waits. */
  @Override
  public void fetch(FetchRequest request, StreamObserver<FetchEvent> answer) {
    for (AddRequest one : added) {
      if (one.getDataId() == request.getDataId()) {
        io.polycast.agent.v1.Types.Object object =
            io.polycast.agent.v1.Types.Object.newBuilder().setPath(one.getPath()).build();
        answer.onNext(FetchEvent.newBuilder().setObject(object).build());
        answer.onCompleted();
        return;
      }
    }
  }

  @Override
  public void close() throws InterruptedException {
    server.shutdownNow().awaitTermination();
    loop.shutdownGracefully(0, 0, java.util.concurrent.TimeUnit.SECONDS).sync();
  }
}
