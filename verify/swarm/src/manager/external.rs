//! An external scheduler: in a quarter of all cases managers ask one, which answers rightly, wrongly, late,
//! twice, to another question or not at all.

use crate::coverage::{self, Coverage};
use crate::draw::Random;
use alloc::string::String;
use alloc::vec::Vec;
use polycast_planning::{RequestId, Ruling};
use polycast_protocol::leases::{Advice, Asked, AskedRequest, ExternalConfig, Input, NoAdvice, Question};
use polycast_types::{Duration, Time};

/// Answers that come in the step of the question or one of the next two are in time.
pub(super) const SETTINGS: ExternalConfig = ExternalConfig { deadline: Duration::from_millis(600) };
/// The latest answer, which is late.
const LATEST_NS: u64 = 1_500_000_000;

/// Draws whether managers ask one, and what its answers depend on. None of the other draws depends on it.
pub(super) fn draw(seed: u64) -> Option<u64> {
    let mut random = Random::new(seed.rotate_left(16));
    random.one_in(4).then(|| random.below(u64::MAX))
}

/// The answers to a question and when they come. A scheduler that is healed answers rightly and at once.
pub(super) fn answers(
    question: &Question,
    now: Time,
    (seed, run): (u64, u64),
    is_healed: bool,
) -> Vec<(Time, Input)> {
    let mut random = Random::new(seed ^ run << 32 ^ question.number);
    let advised = |number, advice| Input::Advised { number, advice };
    let right = advised(question.number, Ok(right(question, &mut random)));
    if is_healed {
        return Vec::from([(now, right)]);
    }
    let slow = |random: &mut Random| now + Duration(random.below(LATEST_NS));
    let at = if random.one_in(3) { slow(&mut random) } else { now };
    let input = match random.below(12) {
        0 => return Vec::new(),
        1 => advised(question.number, Err(NoAdvice::Unreached(String::from("it is not there")))),
        2 => advised(question.number, Err(NoAdvice::Wrong(String::from("it says nothing")))),
        3 => advised(question.number.wrapping_sub(random.below(3)), Ok(wrong(question, &mut random))),
        4..=6 => advised(question.number, Ok(wrong(question, &mut random))),
        _ => right,
    };
    let mut answers = Vec::from([(at, input.clone())]);
    if random.one_in(4) {
        answers.push((slow(&mut random), input));
    }
    answers
}

fn shuffled(question: &Question, random: &mut Random) -> Vec<RequestId> {
    let mut ids: Vec<RequestId> = question.requests.iter().map(|request| request.id).collect();
    for at in (1..ids.len()).rev() {
        ids.swap(at, random.below(at as u64 + 1) as usize);
    }
    ids
}

/// Gives what is free, in any order; a part of what can be divided.
fn right(question: &Question, random: &mut Random) -> Advice {
    let find = |id: RequestId| question.requests.iter().find(move |request| request.id == id);
    let part = |request: &AskedRequest, random: &mut Random| {
        let may = request.divisible && request.remaining_bytes > 1 && random.one_in(4);
        may.then(|| random.within(1..=request.remaining_bytes))
    };
    let rulings = shuffled(question, random).into_iter().filter_map(|id| {
        let bytes = part(find(id)?, random);
        Some((id, Ruling::Accept { bytes, fabric: None, if_free: true }))
    });
    let rulings = rulings.collect();
    Advice { rulings, ask_again: random.one_in(4).then(|| Duration::from_millis(300)) }
}

/// Gives more than there is, about what there is not, twice, or nothing at all.
fn wrong(question: &Question, random: &mut Random) -> Advice {
    let all = Ruling::Accept { bytes: None, fabric: None, if_free: false };
    let mut rulings: Vec<_> = shuffled(question, random).into_iter().map(|id| (id, all.clone())).collect();
    match random.below(4) {
        0 => rulings.push((RequestId(random.below(u64::MAX)), all)),
        1 => rulings.extend(rulings.clone()),
        2 => rulings.clear(),
        _ => {}
    }
    Advice { rulings, ask_again: None }
}

/// Counts what has become of questions since `before`.
pub(super) fn count(coverage: &mut Coverage, before: Asked, now: Asked) {
    for (name, before, now) in [
        (coverage::ADVICE_FOLLOWED, before.followed, now.followed),
        (coverage::ADVICE_LATE, before.late, now.late),
        (coverage::ADVICE_WRONG, before.wrong, now.wrong),
        (coverage::ADVICE_UNREACHED, before.unreached, now.unreached),
    ] {
        if now > before {
            coverage.hit(name);
        }
    }
}
