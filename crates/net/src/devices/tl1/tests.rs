use super::*;
use crate::devices::circuits::{Dialect as _, Plain};
use proptest::prelude::*;

fn outputs(text: &str) -> Vec<Output> {
    let mut framer = Framer::new();
    framer.push(text.as_bytes());
    std::iter::from_fn(|| framer.next_output().unwrap()).collect()
}

fn response(tag: &str, completion: Completion, lines: &[&str]) -> Output {
    let lines = lines.iter().map(ToString::to_string).collect();
    Output::Response { tag: tag.into(), completion, code: None, lines, comment: String::new(), more: false }
}

#[test]
fn answers_are_found_among_prompts_and_echoes() {
    let text = "Welcome; type help\r\nTL1> ENT-CRS-FIBER::1,121:7;\r\nIP 7\r\n<\r\n\n   OCS 26-11-21 09:30:00\r\n\
                M  7 COMPLD\r\n;\r\nTL1> \r\n\n   OCS 26-11-21 09:30:01\r\n*C 12 REPT ALM CRS\r\n   \
                \"1,121:CR,LOS;x\"\r\n;\r\n\n   OCS 26-11-21 09:30:02\r\nM  8 DENY\r\n   IIAC\r\n   \
                /* port 900; there are 320 */\r\n;";
    let seen = outputs(text);
    assert_eq!(seen[0], Output::Acknowledged { code: "IP".into(), tag: "7".into() });
    assert_eq!(seen[1], response("7", Completion::Completed, &[]));
    let (verb, lines) = ("REPT ALM CRS".to_string(), vec!["1,121:CR,LOS;x".to_string()]);
    assert_eq!(seen[2], Output::Autonomous { severity: Severity::Critical, tag: "12".into(), verb, lines });
    let Output::Response { completion: Completion::Denied, code, comment, .. } = &seen[3] else {
        panic!("{:?}", seen[3])
    };
    assert_eq!((code.as_deref(), comment.as_str()), (Some("IIAC"), "port 900; there are 320"));
    assert_eq!(seen.len(), 4);
}

#[test]
fn a_stream_without_end_is_given_up() {
    let mut framer = Framer::new();
    framer.push(&vec![b'x'; OUTPUT_MAX + 1]);
    assert_eq!(framer.next_output(), Err(FrameError::TooLong));
}

#[test]
fn parts_of_an_answer_are_joined() {
    let mut session = Session::new();
    let tag = session.request(&Plain.retrieve()).unwrap();
    let part = |lines: &[&str], more| {
        let Output::Response { tag, completion, code, lines, comment, .. } =
            response(&tag.to_string(), Completion::Completed, lines)
        else {
            unreachable!("a response was made")
        };
        Output::Response { tag, completion, code, lines, comment, more }.emit("OCS", "26-11-21 09:30:00")
    };
    session.receive(part(&["1,2"], true).as_bytes()).unwrap();
    assert_eq!(session.poll(), None);
    session.receive(part(&["3,4"], false).as_bytes()).unwrap();
    let lines = vec!["1,2".to_string(), "3,4".to_string()];
    assert_eq!(
        session.poll(),
        Some(Event::Done { tag, result: Ok(Answer { lines, comment: String::new() }) })
    );
    // The same answer again belongs to no command.
    session.receive(part(&[], false).as_bytes()).unwrap();
    assert_eq!(session.poll(), None);
}

/// Ends of outputs alone, as many as there is room for: each is taken once, and none is moved for another
/// one.
#[test]
fn many_outputs_that_come_at_once_take_no_time_in_the_square_of_their_number() {
    let mut session = Session::new();
    let tag = session.request(&Plain.retrieve()).unwrap().to_string();
    session.receive(&vec![b';'; 4 << 20]).unwrap();
    assert_eq!(session.poll(), None);
    let answer = response(&tag, Completion::Completed, &["1,2"]).emit("OCS", "26-11-21 09:30:00");
    session.receive(answer.as_bytes()).unwrap();
    assert!(
        matches!(session.poll(), Some(Event::Done { result: Ok(answer), .. }) if answer.lines == ["1,2"])
    );
}

/// A line without a letter takes memory too.
#[test]
fn answers_of_empty_lines_are_given_up() {
    let mut session = Session::new();
    let empty = vec![""; 100_000];
    for asked in 1.. {
        let tag = session.request(&Plain.retrieve()).unwrap().to_string();
        let Output::Response { completion, code, comment, lines, .. } =
            response(&tag, Completion::Completed, &empty)
        else {
            unreachable!("a response was made")
        };
        let part = Output::Response { tag, completion, code, comment, lines, more: true };
        match session.receive(part.emit("OCS", "26-11-21 09:30:00").as_bytes()) {
            Ok(()) => assert!(asked < 20, "{asked} answers without an end are kept"),
            Err(error) => return assert_eq!(error, FrameError::TooLong),
        }
    }
}

#[test]
fn what_a_switch_says_of_itself_is_short_and_moves_no_cursor() {
    let mut session = Session::new();
    let tag = session.request(&Plain.retrieve()).unwrap().to_string();
    let long = format!("\u{1b}[2J{}", "x".repeat(20_000));
    let (code, comment) = (Some("IIAC".to_string()), long.clone());
    let (completion, lines) = (Completion::Denied, Vec::new());
    let denied = Output::Response { tag, completion, code, lines, comment, more: false };
    let (severity, tag, verb) = (Severity::Major, "1".to_string(), format!("REPT {long}"));
    let alarm = Output::Autonomous { severity, tag, verb, lines: vec![long; 40] };
    for output in [denied, alarm] {
        session.receive(output.emit("OCS", "26-11-21 09:30:00").as_bytes()).unwrap();
    }
    let texts = std::iter::from_fn(|| session.poll()).flat_map(|event| match event {
        Event::Done { result, .. } => vec![result.unwrap_err().text],
        Event::Report { verb, lines, .. } => [vec![verb], lines].concat(),
    });
    let texts: Vec<String> = texts.collect();
    assert_eq!(texts.len(), 1 + 1 + 8, "of its lines some are left out");
    for text in texts {
        assert!(text.len() < 500 && text.contains(r"\u{1b}[2J") && !text.contains('\u{1b}'), "{text}");
    }
}

fn any_output() -> impl Strategy<Value = Output> {
    let tag = "[0-9A-Z]{1,6}";
    let lines = || proptest::collection::vec("[ -~]{0,20}", 0..4);
    let completion =
        prop_oneof![Just(Completion::Completed), Just(Completion::Denied), Just(Completion::Partial)];
    let response = (tag, completion, lines(), "[a-z][a-z;<> ]{0,8}[a-z]", any::<bool>()).prop_map(
        |(tag, completion, lines, comment, more)| {
            let code = (completion == Completion::Denied).then(|| "IIAC".to_string());
            Output::Response { tag, completion, code, lines, comment, more }
        },
    );
    let severity = prop_oneof![Just(Severity::Message), Just(Severity::Minor), Just(Severity::Critical)];
    let autonomous = (tag, severity, lines()).prop_map(|(tag, severity, lines)| {
        let verb = "REPT EVT CRS".to_string();
        Output::Autonomous { severity, tag, verb, lines }
    });
    let acknowledged = tag.prop_map(|tag| Output::Acknowledged { code: "IP".into(), tag });
    prop_oneof![response, autonomous, acknowledged]
}

proptest! {
    #[test]
    fn outputs_are_read_as_they_are_written(list in proptest::collection::vec(any_output(), 0..5), cut in 1usize..9) {
        let text: String = list.iter().map(|output| output.emit("OCS", "26-11-21 09:30:00")).collect();
        let mut framer = Framer::new();
        let mut seen = Vec::new();
        for piece in text.as_bytes().chunks(cut) {
            framer.push(piece);
            while let Some(output) = framer.next_output().unwrap() {
                seen.push(output);
            }
        }
        prop_assert_eq!(seen, list);
    }
}
