//! Numbers that tell what they are.
//!
//! In hexadecimal, digit r of an element is 0 if the contribution of rank r is not in it; otherwise it is
//! one more than the element's chunk. A sum of several contributions needs no carry, so it can be read:
//!
//! ```text
//! 0x0003   chunk 2, the contribution of rank 0
//! 0x3003   chunk 2, the contributions of ranks 0 and 3
//! 0x3006   no such sum: the contribution of rank 0 is in it twice
//! ```
//!
//! Eight ranks and eight chunks fit into 32 bits, the four bytes of a number in single precision.

use params_and_allreduce::collectives::chunk_range;

/// The smallest number that two to eight ranks can cut into equal chunks.
pub const ELEMENTS: usize = 840;

const BITS: usize = 4;

/// What a rank brings: `[ELEMENTS]`.
pub(super) fn contribution(rank: usize, ranks: usize) -> Vec<u32> {
    ones(ranks).map(|one| one << (BITS * rank)).collect()
}

/// Where the numbers part from the sum of all ranks' contributions, if they do.
pub(super) fn first_that_is_not_the_sum(numbers: &[u32], ranks: usize) -> Option<usize> {
    let everyone: u32 = (0..ranks).map(|rank| 1 << (BITS * rank)).sum();
    let sum: Vec<u32> = ones(ranks).map(|one| one * everyone).collect();
    let longest = sum.len().max(numbers.len());
    (0..longest).find(|&index| sum.get(index) != numbers.get(index))
}

/// For each element, one more than its chunk.
fn ones(ranks: usize) -> impl Iterator<Item = u32> {
    (1..).zip(0..ranks).flat_map(move |(one, chunk)| {
        std::iter::repeat_n(one, chunk_range(ELEMENTS, ranks, chunk).len())
    })
}

/// The chunks that these numbers are, in order, and the ranks whose contributions are added up in them.
/// Fails with what is wrong, when they are anything else than whole chunks of one partial sum.
pub(super) fn read(numbers: &[u32], ranks: usize) -> Result<(Vec<usize>, Vec<usize>), String> {
    let first = numbers.first().ok_or("a message without elements")?;
    let (_, sum_of) = read_one(*first, ranks)?;
    let mut chunks = Vec::new();
    let mut rest = numbers;
    while let Some(&number) = rest.first() {
        let (chunk, of) = read_one(number, ranks)?;
        if of != sum_of {
            return Err(format!(
                "one message with the contributions of ranks {sum_of:?} and of {of:?}"
            ));
        }
        let len = chunk_range(ELEMENTS, ranks, chunk).len();
        if rest.len() < len || rest[..len].iter().any(|&other| other != number) {
            return Err(format!("a message that cuts chunk {chunk} into pieces"));
        }
        chunks.push(chunk);
        rest = &rest[len..];
    }
    Ok((chunks, sum_of))
}

/// The chunk of one element, and the ranks whose contributions are in it.
fn read_one(number: u32, ranks: usize) -> Result<(usize, Vec<usize>), String> {
    let digit = |rank: usize| number >> (BITS * rank) & 0xf;
    let all = 0..u32::BITS as usize / BITS;
    let sum_of: Vec<usize> = all.filter(|&rank| digit(rank) != 0).collect();
    let one = sum_of.first().map_or(0, |&rank| digit(rank));
    let chunk = (one as usize).wrapping_sub(1);
    let alike = sum_of.iter().all(|&rank| rank < ranks && digit(rank) == one);
    if chunk >= ranks || !alike {
        return Err(format!("{number:#x} is no sum of contributions of {ranks} ranks"));
    }
    Ok((chunk, sum_of))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn added(ranks: usize, of: &[usize]) -> Vec<u32> {
        let all = of.iter().map(|&rank| contribution(rank, ranks));
        all.reduce(|a, b| a.iter().zip(&b).map(|(a, b)| a + b).collect()).unwrap()
    }

    #[test]
    fn every_chunk_of_every_sum_is_read() {
        for ranks in super::super::RANKS {
            for subset in 1..1u32 << ranks {
                let of: Vec<usize> = (0..ranks).filter(|rank| subset >> rank & 1 == 1).collect();
                let sum = added(ranks, &of);
                assert_eq!(read(&sum, ranks), Ok(((0..ranks).collect(), of.clone())));
                let last = chunk_range(ELEMENTS, ranks, ranks - 1);
                assert_eq!(read(&sum[last], ranks), Ok((vec![ranks - 1], of)));
            }
        }
    }

    #[test]
    fn what_is_no_partial_sum_is_refused() {
        let complaint = |numbers: &[u32]| read(numbers, 4).unwrap_err();
        assert!(complaint(&added(4, &[0, 3, 0])).contains("0x1002 is no sum"));
        assert!(
            complaint(&contribution(4, 8))
                .contains("0x10000 is no sum of contributions of 4 ranks")
        );
        assert!(complaint(&[0; 210]).contains("0x0 is no sum"));
        assert!(complaint(&contribution(1, 4)[..209]).contains("cuts chunk 0 into pieces"));
        let two = [&contribution(0, 4)[..210], &contribution(1, 4)[210..420]].concat();
        assert!(complaint(&two).contains("contributions of ranks [0] and of [1]"));
        assert!(complaint(&[]).contains("without elements"));
    }

    #[test]
    fn the_whole_sum_is_told_from_every_other() {
        let whole = added(3, &[0, 1, 2]);
        assert_eq!(first_that_is_not_the_sum(&whole, 3), None);
        assert_eq!(first_that_is_not_the_sum(&added(3, &[0, 2]), 3), Some(0));
        assert_eq!(first_that_is_not_the_sum(&whole[..839], 3), Some(839));
        // All contributions of chunk 0 twice are the contributions of chunk 1, in the wrong place.
        let doubled: Vec<u32> = whole.iter().map(|number| 2 * number).collect();
        assert_eq!(first_that_is_not_the_sum(&doubled, 3), Some(0));
    }
}
