use super::*;
use polycast_net::devices::tl1::{Login, Tl1Client, Tl1Error, Tl1Options};
use polycast_planning::circuits::Connection;

/// Mirrors that remember what was done to them.
#[derive(Clone, Default)]
struct Remembered(Rc<RefCell<Vec<(Circuit, Light)>>>);

impl Move for Remembered {
    async fn change(&self, circuit: Circuit, light: Light) -> Result<(), LabError> {
        self.0.borrow_mut().push((circuit, light));
        Ok(())
    }
}

/// Runs `test` with a client of a switch of 8 ports whose circuits take `millis`.
fn with_switch(millis: u64, test: impl AsyncFnOnce(Tl1Client, Remembered, SocketAddr)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let listen = listener.local_addr().unwrap();
        let login = Some(("lab".to_string(), "secret".to_string()));
        let options =
            OcsOptions { listen, ports: 8, circuit_time: Duration::from_millis(millis), login, light: None };
        let mirrors = Remembered::default();
        tokio::task::spawn_local(serve(listener, Rc::new(Switch::new(options, mirrors.clone()))));
        let client = Tl1Client::connect(listen, with_login("secret")).await.unwrap();
        test(client, mirrors, listen).await;
    });
}

fn with_login(password: &str) -> Tl1Options {
    let login = Login { user: "lab".into(), password: password.into() };
    Tl1Options { login: Some(login), ..Tl1Options::default() }
}

fn circuit(from: u32, to: u32) -> Circuit {
    Circuit { from, to }
}

#[test]
fn circuits_come_dark_then_partly_then_whole() {
    with_switch(4, async |client, mirrors, _| {
        client.enter(circuit(0, 4)).await.unwrap();
        assert_eq!(*mirrors.0.borrow(), [(circuit(0, 4), Light::Partial), (circuit(0, 4), Light::Full)]);
        let (a, b) = tokio::join!(client.enter(circuit(4, 0)), client.enter(circuit(1, 5)));
        assert_eq!((a, b), (Ok(()), Ok(())));
        assert_eq!(client.retrieve().await.unwrap(), [circuit(0, 4), circuit(1, 5), circuit(4, 0)]);
        let mut reports = client.reports();
        client.delete(circuit(0, 4)).await.unwrap();
        assert_eq!(mirrors.0.borrow().last(), Some(&(circuit(0, 4), Light::Dark)));
        assert_eq!(reports.recv().await.unwrap().lines, ["1,5:DLT"]);
        assert_eq!(client.retrieve().await.unwrap(), [circuit(1, 5), circuit(4, 0)]);
    });
}

#[test]
fn what_cannot_be_is_denied_with_its_reason() {
    with_switch(0, async |client, mirrors, address| {
        client.enter(circuit(0, 4)).await.unwrap();
        for (refused, part) in [
            (client.enter(circuit(0, 5)).await, "circuit 1,5 has one of these ports"),
            (client.enter(circuit(1, 4)).await, "circuit 1,5 has one of these ports"),
            (client.enter(circuit(1, 8)).await, "no port 9: the ports are 1 to 8"),
            (client.enter(circuit(1, 1)).await, "joined to itself"),
            (client.delete(circuit(0, 5)).await, "no circuit 1,6"),
        ] {
            let message = refused.unwrap_err().to_string();
            assert!(message.contains(part), "{message}");
        }
        assert_eq!(*mirrors.0.borrow(), [(circuit(0, 4), Light::Full)]);
        let wrong = Tl1Client::connect(address, with_login("guess")).await.unwrap_err();
        assert!(matches!(wrong, Tl1Error::Login { .. }), "{wrong}");
        let stranger = Tl1Client::connect(address, Tl1Options::default()).await.unwrap();
        let denied = stranger.retrieve().await.unwrap_err();
        assert!(denied.to_string().contains("log in first"), "{denied}");
    });
}

#[test]
fn it_misbehaves_when_it_is_told_to() {
    with_switch(0, async |client, mirrors, address| {
        let tell = async |mode: &str| {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(format!("ED-FAULT::{mode}:1;").as_bytes()).await.unwrap();
            assert!(stream.read(&mut [0; 256]).await.unwrap() > 0);
        };
        tell("REFUSE").await;
        assert!(client.enter(circuit(0, 1)).await.unwrap_err().to_string().contains("do not move"));
        tell("LIE").await;
        client.enter(circuit(0, 1)).await.unwrap();
        assert_eq!(client.retrieve().await.unwrap(), []);
        tell("DARK").await;
        client.enter(circuit(0, 1)).await.unwrap();
        assert_eq!(client.retrieve().await.unwrap(), [circuit(0, 1)]);
        assert_eq!(*mirrors.0.borrow(), []);
        tell("HANGUP").await;
        let lost = client.enter(circuit(2, 3)).await.unwrap_err();
        assert!(matches!(lost, Tl1Error::Lost { .. }), "{lost}");
    });
}

#[test]
fn it_speaks_the_planners_dialect() {
    let connection = Connection { from: 0, to: 120 };
    let circuit = circuit(connection.from, connection.to);
    assert_eq!(connection.tl1_enter(7), Request::Enter(circuit).emit(7));
    assert_eq!(connection.tl1_delete(7), Request::Delete(circuit).emit(7));
}

#[test]
fn time_is_written_as_tl1_does() {
    let text = time_in_words();
    let digits = |range: std::ops::Range<usize>| text[range].parse::<u32>().unwrap();
    assert_eq!(text.len(), 17);
    assert!((1..=12).contains(&digits(3..5)) && (1..=31).contains(&digits(6..8)), "{text}");
}
