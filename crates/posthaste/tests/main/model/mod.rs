//! Random sequences of operations, on every database, against a small reference model.
//!
//! After each operation every row of the table must be as the model says. A failing sequence is shrunk and
//! printed as a numbered list. Time passes by shifting what is stored, never by waiting.
//!
//! Rows of the contract: PR1.

mod operation;
mod reference;
mod subject;

use proptest::collection::vec;
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::harness::{Db, Kind};
use operation::{Operation, Script, operation};
use reference::Model;

use crate::harness::spy::Spy;
use subject::Subject;

conformance_by_kind!(pr1_random_sequences_do_what_the_model_says);

async fn pr1_random_sequences_do_what_the_model_says(kind: Kind) {
    let db = Db::new(kind).await;
    let result = run(TestRunner::new(config()), async |script| play(&Subject::new(&db), script).await);
    if let Err(failure) = result {
        panic!("{failure}");
    }
    db.drop_everything().await;
}

/// The model must be able to fail: a store whose `extend` does nothing is found out, in few steps.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pr1_a_planted_bug_is_found_and_shrunk_to_few_steps() {
    let db = Db::new(Kind::Memory).await;
    let forgetful = Spy::forgetful(db.shared_store());
    // Always the same scripts: this one is about the test, not about the store.
    let config = Config { cases: 5000, ..config() };
    let runner = TestRunner::new_with_rng(config, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let failure =
        run(runner, async |script| play(&Subject::with_store(&db, &forgetful), script).await).unwrap_err();
    println!("{failure}");
    assert!(failure.contains("extend"), "{failure}");
    let steps =
        failure.lines().filter(|line| line.trim_start().starts_with(|c: char| c.is_ascii_digit())).count();
    assert!(steps <= 6, "{failure}");
}

fn config() -> Config {
    // `PROPTEST_CASES` asks for more.
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(48);
    Config { cases, failure_persistence: None, max_shrink_iters: 2000, ..Config::default() }
}

/// Runs scripts until one fails; the error is the shrunk script and what was wrong.
fn run(mut runner: TestRunner, play: impl AsyncFn(Script) -> Result<(), String>) -> Result<(), String> {
    let runtime = tokio::runtime::Handle::current();
    let scripts = vec(operation(), 1..40).prop_map(Script);
    let outcome = runner.run(&scripts, |script| {
        let played = tokio::task::block_in_place(|| runtime.block_on(play(script)));
        played.map_err(TestCaseError::fail)
    });
    outcome.map_err(|error| match error {
        TestError::Fail(reason, script) => format!("after this sequence:\n{script:?}\n{reason}"),
        TestError::Abort(reason) => format!("aborted: {reason}"),
    })
}

async fn play(subject: &Subject<'_>, script: Script) -> Result<(), String> {
    subject.clear().await;
    let mut model = Model::default();
    for (at, operation) in script.0.iter().enumerate() {
        let step = at + 1;
        apply(subject, &mut model, operation)
            .await
            .map_err(|difference| format!("step {step}: {difference}"))?;
        model.compare(&subject.records().await).map_err(|difference| format!("step {step}: {difference}"))?;
    }
    Ok(())
}

async fn apply(subject: &Subject<'_>, model: &mut Model, operation: &Operation) -> Result<(), String> {
    model.tick();
    match operation {
        Operation::Enqueue { topic, key, again, delay, commit } => {
            let event = model.event(*topic, *key, *again, *delay);
            let answer = subject.enqueue(event.clone(), *commit).await;
            model.enqueued(&event, *delay, &answer, *commit)
        }
        Operation::Claim { worker, limit, from_mark } => {
            let mark = if *from_mark { model.mark(*worker) } else { None };
            let batch = subject.claim(*worker, *limit, mark.map(|(mark, _)| mark)).await;
            model.claimed(*worker, *limit, mark, batch)
        }
        Operation::Settle { batch, keep } => {
            let batch: Vec<_> =
                batch.iter().filter_map(|(back, verdict)| Some((model.lease(*back)?, *verdict))).collect();
            let settled = subject.settle(&batch, *keep).await;
            model.settled(&batch, *keep, &settled)
        }
        Operation::Extend { lease } => match model.lease(*lease) {
            None => Ok(()),
            Some(lease) => {
                let lost = subject.extend(&lease).await;
                model.extended(&lease, &lost)
            }
        },
        Operation::Wait { seconds } => {
            subject.shift(*seconds).await;
            model.wait(*seconds);
            Ok(())
        }
        Operation::Replay { topic } => model.replayed(*topic, subject.replay(*topic).await),
        Operation::Discard { topic } => model.discarded(*topic, subject.discard(*topic).await),
        Operation::Purge { ending, seconds } => {
            model.purged(*ending, *seconds, subject.purge(*ending, *seconds).await)
        }
    }
}
