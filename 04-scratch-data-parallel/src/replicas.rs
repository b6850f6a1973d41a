//! Whether replicas are still one model when a run ends.

/// Whether all replicas have the same weights, by their hashes.
pub fn agree<H: PartialEq>(hashes: &[H]) -> bool {
    hashes.windows(2).all(|pair| pair[0] == pair[1])
}

/// `2 replicas ended with the same weights`, by their hashes.
pub fn verdict<H: PartialEq>(hashes: &[H]) -> String {
    let weights = if agree(hashes) { "the same" } else { "DIFFERENT" };
    format!("{} replicas ended with {weights} weights", hashes.len())
}

#[cfg(test)]
mod tests {
    use super::verdict;

    #[test]
    fn replicas_that_differ_are_told_from_those_that_agree() {
        assert_eq!(verdict(&["a", "a", "a"]), "3 replicas ended with the same weights");
        for hashes in [["a", "a", "b"], ["b", "a", "a"], ["a", "b", "a"]] {
            assert_eq!(verdict(&hashes), "3 replicas ended with DIFFERENT weights", "{hashes:?}");
        }
    }
}
