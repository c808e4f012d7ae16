//! The session's machines at both ends, with a driver that only carries their words.

use crate::words::{HANDLE, INPUTS_MAX, Words, drain, emitted, hear};
use polycast_protocol::session::{
    Called, Expected, Gone, Goodbye, Guest, GuestConfig, GuestId, GuestInput, GuestOutput, Roster,
    RosterConfig, RosterInput, RosterOutput, Verdicts, Why,
};
use polycast_types::{ObjectId, Time};
use polycast_wire::WireError;
use polycast_wire::control::Control;

/// Connections that a run knows; each says HELLO once.
const GUESTS_MAX: u32 = 24;

fn gone(words: &mut Words<'_>) -> Gone {
    match words.below(3) {
        0 => Gone::Closed,
        // The system's words, which are few.
        1 => Gone::Broken(words.short_name()),
        _ => Gone::Foreign(WireError::Version(words.below(256) as u8)),
    }
}

fn why(words: &mut Words<'_>) -> Why {
    match words.below(5) {
        0 => Why::WentAway,
        1 => Why::Said(words.text()),
        2 => Why::CutOff,
        3 => Why::TreesLost(words.text()),
        _ => Why::Stalled(words.span()),
    }
}

fn goodbye(words: &mut Words<'_>) -> Goodbye {
    if words.flip() { Goodbye::Finished } else { Goodbye::Refuse(why(words)) }
}

struct Reception {
    roster: Roster,
    /// Connections so far.
    guests: u32,
}

impl Reception {
    fn new(now: Time, words: &mut Words<'_>) -> Self {
        let mut names = words.names();
        names.sort_unstable();
        names.dedup();
        let expected =
            if words.flip() { Expected::Named(names) } else { Expected::Count(1 + words.below(4) as u32) };
        let deadline = words.flip().then(|| words.span());
        let config = RosterConfig {
            handle: HANDLE,
            expected,
            object_len: words.number(1 << 20),
            join_timeout: words.span(),
            have_timeout: words.span(),
            stall_timeout: words.span(),
            verdicts: if words.flip() { Verdicts::Sender } else { Verdicts::Roster { deadline } },
        };
        Reception { roster: Roster::new(now, config), guests: 0 }
    }

    fn input(&mut self, now: Time, words: &mut Words<'_>) {
        let guest = GuestId(words.below(self.guests.max(1).into()) as u32);
        let roster = &mut self.roster;
        match words.below(20) {
            0..=3 if self.guests < GUESTS_MAX => {
                let (guest, name) = (GuestId(self.guests), words.short_name());
                self.guests += 1;
                // It comes out of a frame, as all names do.
                let frame = emitted(&Control::Hello(words.hello(&name)));
                hear(&frame, |control| {
                    let Control::Hello(hello) = control else { return };
                    roster.handle(now, RosterInput::Hello { guest, hello });
                });
            }
            4 => roster.handle(now, RosterInput::Gone { guest, how: gone(words) }),
            5 => roster.handle(now, RosterInput::Told { guest }),
            6 => roster.handle(now, RosterInput::NotComing { name: &words.name(), why: words.text() }),
            7 => roster.handle(now, RosterInput::Add(&words.name())),
            8 => roster.handle(now, RosterInput::Remove(&words.name())),
            9 => roster.handle(now, RosterInput::Fail { name: &words.name(), why: why(words) }),
            10 => {
                let (failure, serves) = (words.flip().then(|| why(words)), words.flip());
                roster.handle(now, RosterInput::Settled { guest, failure, serves });
            }
            11 if words.below(8) == 0 => roster.handle(now, RosterInput::Over(goodbye(words))),
            _ => {
                let frame = words.frame_to_source(1_000, GUESTS_MAX);
                hear(&frame, |control| roster.handle(now, RosterInput::Frame { guest, control }));
            }
        }
    }
}

/// A source's list survives whatever comes over connections; each message that it asks for can be written,
/// and it comes to rest.
pub fn roster(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time(1);
    let mut reception = Reception::new(now, &mut words);
    let mut finished = false;
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        reception.input(now, &mut words);
        let roster = &mut reception.roster;
        roster.check();
        if words.below(4) > 0 {
            drain(
                roster,
                |roster| roster.poll(now),
                |_, output| match output {
                    RosterOutput::Goodbye(_, Goodbye::Refuse(why)) => {
                        drop(emitted(&Control::Refuse(&why.to_string())))
                    }
                    // The driver ends the transfer now, or before long.
                    RosterOutput::Finished | RosterOutput::NoneCame => finished = true,
                    _ => {}
                },
            );
            roster.check();
            // Every connection may hear one word more.
            assert!(roster.entries().count() <= 5 + GUESTS_MAX as usize + INPUTS_MAX);
            let due = roster.deadline().is_some_and(|at| at <= now);
            assert!(finished || !due, "drained, yet due at {now:?}: {roster:?}");
        }
    }
}

/// A receiver's end survives whatever a source says; its driver keeps to what it is asked for.
pub fn guest(bytes: &[u8]) {
    let mut words = Words::new(bytes);
    let mut now = Time(1);
    let config = GuestConfig {
        handle: HANDLE,
        name: "host-0".into(),
        window_bytes: words.number(1 << 20),
        serve_port: words.small(9) as u16,
        location: words.location(),
        answer_timeout: words.span(),
        called: (words.small(2) == 1).then(|| Called {
            object: ObjectId::default(),
            object_len: words.number(1 << 20),
            root: None,
            permitted: None,
        }),
    };
    let mut guest = Guest::new(now, config);
    let mut owed: Vec<GuestOutput> = Vec::new();
    let mut ended = false;
    for _ in 0..INPUTS_MAX {
        if words.is_empty() {
            break;
        }
        words.pass(&mut now);
        match words.below(16) {
            0 => guest.handle(now, GuestInput::Gone(gone(&mut words))),
            1 => guest.handle(now, GuestInput::Verifiable),
            2 if words.below(8) == 0 => guest.handle(now, GuestInput::Failed(words.text())),
            3 | 4 => guest.handle(now, GuestInput::Serves(words.flip())),
            5 | 6 => {
                let asked = owed.pop();
                answer(&mut guest, now, asked, &mut words);
            }
            _ => {
                let frame = words.frame_to_receiver(1_000);
                hear(&frame, |control| guest.handle(now, GuestInput::Frame(control)));
            }
        }
        guest.check();
        if words.below(4) > 0 {
            drain(
                &mut guest,
                |guest| guest.poll(now),
                |guest, output| {
                    assert!(!ended, "{output:?} after the end");
                    ended = matches!(output, GuestOutput::Ended(_));
                    write(guest, &output);
                    // The driver does the last thing that it is asked for.
                    if matches!(output, GuestOutput::Offer(_) | GuestOutput::Resume | GuestOutput::Begin) {
                        owed = vec![output];
                    }
                },
            );
            guest.check();
            assert!(guest.deadline().is_none_or(|at| at > now), "drained, yet due at {now:?}");
        }
    }
}

/// Passes on the driver's answer once it has done what was requested.
fn answer(guest: &mut Guest, now: Time, asked: Option<GuestOutput>, words: &mut Words<'_>) {
    match asked {
        Some(GuestOutput::Offer(_)) => guest.handle(now, GuestInput::Stored { resumes: words.flip() }),
        Some(GuestOutput::Resume) => guest.handle(now, GuestInput::Checked),
        Some(GuestOutput::Begin) => guest.handle(now, GuestInput::Committed),
        _ => {}
    }
}

/// Each message that the machine asks for can be written.
fn write(guest: &Guest, output: &GuestOutput) {
    match output {
        GuestOutput::Hello => drop(emitted(&guest.hello())),
        GuestOutput::Say(control) => drop(emitted(control)),
        GuestOutput::Refuse(reason) => drop(emitted(&Control::Refuse(reason))),
        _ => {}
    }
}
