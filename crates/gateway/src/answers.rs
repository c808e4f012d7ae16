//! Answers of the hub that are told again for a while: the same question is on its way once at a time.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Mutex as Turn;

/// Answers that are kept, and their bytes.
const KEPT_MAX: usize = 16_384;
const KEPT_BYTES_MAX: usize = 64 << 20;

/// A question: who asks, by a digest of what it proves that with, and the path.
pub(crate) type Question = ([u8; 32], String);

/// Answers by their questions.
pub(crate) struct Answers<T> {
    known: Mutex<BTreeMap<Question, Entry<T>>>,
}

struct Entry<T> {
    answer: Arc<Turn<Option<Known<T>>>>,
    bytes: usize,
    until: Instant,
}

struct Known<T> {
    answer: T,
    until: Instant,
}

/// A fresh answer: for how long it holds, and how long it is.
pub(crate) struct Fresh<T> {
    pub answer: T,
    pub holds: Duration,
    pub bytes: usize,
}

impl<T: Clone> Answers<T> {
    pub(crate) fn new() -> Self {
        Answers { known: Mutex::new(BTreeMap::new()) }
    }

    /// The answer, which `ask` gets unless it is known. All that ask at the same time wait for the same one.
    pub(crate) async fn get(&self, question: Question, ask: impl Future<Output = Fresh<T>>) -> T {
        let turn = {
            let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
            let entry = known.entry(question.clone()).or_insert_with(|| Entry {
                answer: Arc::default(),
                bytes: 0,
                until: Instant::now(),
            });
            Arc::clone(&entry.answer)
        };
        let mut place = turn.lock().await;
        if let Some(known) = place.as_ref().filter(|known| Instant::now() < known.until) {
            return known.answer.clone();
        }
        let Fresh { answer, holds, bytes } = ask.await;
        let until = Instant::now() + holds;
        *place = Some(Known { answer: answer.clone(), until });
        drop(place);
        self.keep(question, turn, (bytes, until));
        answer
    }

    /// Notes how long an answer is; where there are too many, those go first that hold no more.
    fn keep(
        &self,
        question: Question,
        answer: Arc<Turn<Option<Known<T>>>>,
        (bytes, until): (usize, Instant),
    ) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.insert(question, Entry { answer, bytes, until });
        let is_full = |known: &BTreeMap<_, Entry<T>>| {
            known.len() > KEPT_MAX || known.values().map(|entry| entry.bytes).sum::<usize>() > KEPT_BYTES_MAX
        };
        if is_full(&known) {
            let now = Instant::now();
            known.retain(|_, entry| now < entry.until);
        }
        if is_full(&known) {
            known.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[tokio::test]
    async fn a_question_is_on_its_way_once_and_each_has_its_own_answers() {
        let (answers, asked) = (Arc::new(Answers::new()), Arc::new(AtomicUsize::new(0)));
        let get = |who: u8, holds: Duration| {
            let (answers, asked) = (Arc::clone(&answers), Arc::clone(&asked));
            async move {
                let ask = async {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    let answer = asked.fetch_add(1, Ordering::SeqCst);
                    Fresh { answer, holds, bytes: 1 }
                };
                answers.get(([who; 32], "/a".into()), ask).await
            }
        };
        let long = Duration::from_secs(60);
        let (one, two) = tokio::join!(get(1, long), get(1, long));
        assert_eq!((one, two), (0, 0));
        assert_eq!(get(1, long).await, 0);
        assert_eq!(get(2, Duration::ZERO).await, 1, "another one asks for itself");
        assert_eq!(get(2, long).await, 2, "it held no longer");
    }

    #[tokio::test]
    async fn what_is_kept_is_bounded() {
        let answers = Answers::new();
        for number in 0..100 {
            let fresh = Fresh { answer: number, holds: Duration::from_secs(60), bytes: 2 << 20 };
            answers.get(([0; 32], number.to_string()), async { fresh }).await;
            let known = answers.known.lock().unwrap();
            assert!(known.values().map(|entry| entry.bytes).sum::<usize>() <= KEPT_BYTES_MAX);
        }
    }
}
