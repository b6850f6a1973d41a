//! What no GPT can be, or do, is refused in one line.

use candle_core::Module as _;

use super::{Gpt, SIZES, gpt, on_ranks};
use crate::prelude::*;

#[test]
fn sizes_that_make_no_gpt_are_refused() {
    for sizes in [Gpt { heads: 3, ..SIZES }, Gpt { blocks: 0, ..SIZES }, Gpt { heads: 0, ..SIZES }]
    {
        let told = Layers::gpt(&sizes).err().unwrap().to_string();
        assert!(
            told.starts_with("a GPT has sizes from 1, and its heads divide its width"),
            "{told}"
        );
    }
}

/// By the plan of a run, and by the ranks that build their parts.
#[test]
fn what_does_not_divide_by_the_ranks_is_refused_by_name() {
    // A vocabulary that divides by all of them.
    let many = Gpt { vocabulary: 24, ..SIZES };
    for (sizes, ranks, refusal) in [
        (many, 3, "4 heads cannot be cut into 3 equal parts"),
        (many, 8, "4 heads cannot be cut into 8 equal parts"),
        (
            Gpt { vocabulary: 21, ..SIZES },
            2,
            "21 tokens of the vocabulary cannot be cut into 2 equal parts",
        ),
    ] {
        let layers = Layers::gpt(&sizes).unwrap();
        assert_eq!(layers.check_parts(ranks).unwrap_err().to_string(), refusal);
        let told = on_ranks(ranks, |rank| {
            let all = 0..layers.len();
            layers.build_part(all, 1, DType::F64, &Device::Cpu, &rank.into()).map(drop)
        });
        let told = told.unwrap_err().to_string();
        assert!(told.contains(refusal) && told.lines().count() == 1, "{told}");
    }
    for ranks in [1, 2, 4] {
        gpt().check_parts(ranks).unwrap();
    }
}

#[test]
fn texts_that_do_not_fit_are_refused() {
    let network = gpt().build(0..8, 1, DType::F64, &Device::Cpu).unwrap();
    let told = |tokens: Vec<u32>| {
        let tokens = Tensor::from_vec(tokens.clone(), (1, tokens.len()), &Device::Cpu).unwrap();
        network.forward(&tokens).map(|logits| logits.dims().to_vec()).map_err(|it| it.to_string())
    };
    assert_eq!(told(vec![0; 5]).unwrap(), [5, 20]);
    assert_eq!(told(vec![19; 2]).unwrap(), [2, 20]);
    let expected = "a text of 6 tokens is longer than the context, 5 tokens";
    assert!(told(vec![0; 6]).unwrap_err().starts_with(expected));
    assert!(told(vec![3, 20]).unwrap_err().contains("20"));
}
