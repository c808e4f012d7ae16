package io.polycast.spark;

import static org.junit.Assert.assertEquals;
import static org.junit.Assert.assertNull;
import static org.junit.Assert.assertThrows;
import static org.junit.Assert.assertTrue;

import java.nio.file.Path;
import java.nio.file.Paths;
import java.util.Arrays;
import java.util.Collections;
import java.util.UUID;
import org.junit.Before;
import org.junit.Rule;
import org.junit.Test;
import org.junit.rules.TemporaryFolder;
import io.polycast.agent.v1.Objects.FetchEvent;

public class AgentClientTest {
  @Rule public final TemporaryFolder folder = new TemporaryFolder();

  private Path socket;
  private AgentClient client;

  @Before
  public void makeClient() {
    socket = folder.getRoot().toPath().resolve("agent.sock");
    client = new AgentClient(socket, new UUID(0x0102030405060708L, 0x090a0b0c0d0e0f10L));
  }

  @Test
  public void aFileIsAddedFetchedAndRemoved() throws Exception {
    try (FakeAgent agent = new FakeAgent(socket)) {
      client.add(7, Paths.get("/there"), "broadcast-7");
      assertEquals(1, agent.registered.size());
      byte[] app = agent.registered.get(0).getAppId().toByteArray();
      assertTrue(Arrays.toString(app), app.length == 16 && app[0] == 1 && app[15] == 16);
      assertEquals("/there", agent.added.get(0).getPath());
      AgentClient.Fetching fetching = client.fetch(7, 10_000);
      assertEquals("/there", fetching.next(10_000).getObject().getPath());
      client.remove(Collections.singletonList(7L), Collections.emptyList());
      client.remove(Collections.singletonList(7L), Collections.singletonList("b"));
      assertTrue(agent.removed.get(0).getAll());
      assertEquals(Collections.singletonList("b"), agent.removed.get(1).getAgentsList());
      client.close();
      assertTrue(agent.registered.isEmpty());
    }
  }

  @Test
  public void anObjectThatDoesNotComeIsWaitedForAndGivenUp() throws Exception {
    try (FakeAgent agent = new FakeAgent(socket)) {
      AgentClient.Fetching fetching = client.fetch(8, 10_000);
      FetchEvent event = fetching.next(50);
      assertNull(event);
      fetching.cancel();
      Refusal cancelled = assertThrows(Refusal.class, () -> fetching.next(10_000));
      assertEquals(Refusal.NO_AGENT, cancelled.kind);
    }
  }

  @Test
  public void anAgentOfAnotherVersionIsNamed() throws Exception {
    try (FakeAgent agent = new FakeAgent(socket)) {
      agent.version = 9;
      Refusal refusal = assertThrows(Refusal.class, client::register);
      assertEquals(Refusal.VERSION, refusal.kind);
      assertTrue(refusal.getMessage(), refusal.getMessage().contains("version 9"));
    }
  }

  @Test
  public void withoutAnAgentTheSocketIsNamed() {
    Refusal refusal = assertThrows(Refusal.class, client::status);
    assertEquals(Refusal.NO_AGENT, refusal.kind);
    assertTrue(refusal.getMessage(), refusal.getMessage().contains(socket.toString()));
  }

  @Test
  public void anAgentThatBeginsAnewIsRegisteredWithAgain() throws Exception {
    try (FakeAgent agent = new FakeAgent(socket)) {
      client.add(1, Paths.get("/one"), "one");
      // As if the agent had restarted.
      agent.registered.clear();
      client.add(2, Paths.get("/two"), "two");
      assertEquals(2, agent.added.size());
      assertEquals(1, agent.registered.size());
    }
  }

  @Test
  public void anAgentThatDiedAndCameBackIsFound() throws Exception {
    try (FakeAgent agent = new FakeAgent(socket)) {
      client.register();
    }
    assertThrows(Refusal.class, client::status);
    client.forget();
    try (FakeAgent agent = new FakeAgent(socket)) {
      assertTrue(client.status().getManagerConnected());
      assertEquals(1, agent.registered.size());
    }
  }
}
