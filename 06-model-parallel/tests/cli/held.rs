//! What devices hold, by hand.

use super::{SMALL, metrics};

/// What the runs' devices held.
fn held(arguments: &[&str]) -> impl Fn(&str, usize, &str) -> u64 + use<> {
    let lines = metrics(arguments, "split");
    move |run: &str, device: usize, what: &str| {
        let line = lines.iter().find(|line| line["run"] == run).expect("a run of this name");
        line["held"][device][what].as_u64().expect("bytes")
    }
}

/// In f32: a device keeps the images and each layer's result, and its parameters' gradients.
#[test]
fn memory_by_hand() {
    let small = ["--data=synthetic", "--train-size=70", "--test-size=20", "--epochs=1"];
    let ways = ["--widths=20,18,16", "--cut=2", "--batch-size=1024"];
    let held = held(&[&small[..], &ways].concat());
    let bytes = |samples: u64, widths: &[u64]| 4 * samples * widths.iter().sum::<u64>();
    // A batch is no larger than the data. The loss is kept as well.
    assert_eq!(held("one device", 0, "activations"), bytes(70, &[784, 20, 18, 16, 10]) + 4);
    let stage = |run, device| held(run, device, "activations");
    assert_eq!(stage("naive, whole batch", 0), bytes(70, &[784, 20, 18]));
    // The last stage has the loss as well; 70 images are eight micro-batches of 9 or 8.
    assert_eq!(stage("naive, whole batch", 1), bytes(70, &[18, 16, 10]) + 4);
    assert_eq!(stage("GPipe, 8 micro-batches", 1), bytes(70, &[18, 16, 10]) + 8 * 4);
    assert_eq!(stage("1F1B, 8 micro-batches", 0), bytes(2 * 9, &[784, 20, 18]));
    // One device keeps one micro-batch and its loss at a time.
    let alone = held("one device, 8 micro-batches", 0, "activations");
    assert_eq!(alone, bytes(9, &[784, 20, 18, 16, 10]) + 4);
    assert_eq!(stage("1F1B, 8 micro-batches", 1), bytes(9, &[18, 16, 10]) + 4);
    for device in [0, 1] {
        let sets = |run| held(run, device, "gradients") / held(run, device, "parameters");
        assert_eq!(sets("naive, whole batch"), 1);
        assert_eq!(sets("1F1B, 8 micro-batches"), 2, "the sum, and the gradients of a micro-batch");
        let optimizer = held("tensor parallel", device, "optimizer");
        assert_eq!(optimizer, held("tensor parallel", device, "parameters"));
    }
}

#[test]
fn without_momentum_the_optimizer_keeps_nothing() {
    let held = held(&[&SMALL[..], &["--widths=20", "--schedule=1f1b", "--momentum=0"]].concat());
    for (run, device) in [("one device", 0), ("1F1B, 8 micro-batches", 1)] {
        assert_eq!(held(run, device, "optimizer"), 0, "{run}");
        assert!(held(run, device, "parameters") > 0, "{run}");
    }
}

/// One device that adds micro-batches up has the sum so far and the next one's gradients.
#[test]
fn micro_batches_on_one_device_cost_gradients() {
    let resnet18 = ["--model=resnet18", "--width=2", "--micro-batches=3", "--schedule=gpipe"];
    let held = held(&[&SMALL[..], &resnet18].concat());
    let run = "one device, 3 micro-batches";
    assert_eq!(held(run, 0, "gradients"), 2 * held(run, 0, "parameters"));
    assert_eq!(held("one device", 0, "gradients"), held("one device", 0, "parameters"));
    // The largest of three shards of 32 images has 11; what it keeps is as much for each image, but for the last layer's
    // weights, which are transposed.
    let of_images = |run, loss| held(run, 0, "activations") - 4 * 16 * 10 - loss;
    assert_eq!(32 * of_images(run, 4), 11 * of_images("one device", 4));
}
