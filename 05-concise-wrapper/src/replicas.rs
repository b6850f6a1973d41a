//! Whether replicas are still one model when a run ends.

/// `ddp: 2 replicas ended with the same weights`, of a run's replicas by the hashes of their weights; `None`
/// where there is but one.
pub fn verdict(run: &str, hashes: &[String]) -> Option<String> {
    let [first, others @ ..] = hashes else { return None };
    let same = if others.iter().all(|other| other == first) { "the same" } else { "DIFFERENT" };
    let told = || format!("{run}: {} replicas ended with {same} weights", hashes.len());
    (!others.is_empty()).then(told)
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn replicas_that_differ_are_told_from_those_that_agree() {
        let of = |hashes: &[&str]| {
            verdict("ddp", &hashes.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(of(&["a", "a", "a"]).unwrap(), "ddp: 3 replicas ended with the same weights");
        assert_eq!(of(&["a", "a", "b"]).unwrap(), "ddp: 3 replicas ended with DIFFERENT weights");
        assert_eq!((of(&["a"]), of(&[])), (None, None));
    }
}
