"""What a GPU does in a training step of PyTorch's: its kernels, by the time that they take in ten steps.

Not for a table: to see, beside a trace of ours, where one of the two is slower.
"""

from torch.profiler import ProfilerActivity, profile

from lenet import lenet, step_flags, training
from measure import parsed
from resnet18 import resnet18

MODELS = {"lenet": lenet, "resnet18": resnet18}
STEPS = 10
ROWS = 40


def main():
    """Print the table."""
    flags = step_flags(__doc__, batch=256)
    flags.add_argument("--model", default="resnet18", choices=MODELS)
    args = parsed(flags)
    work = training(MODELS[args.model], args, launches_count=args.model == "lenet")
    for _ in range(STEPS):
        work()
    on_a_gpu = args.device == "cuda"
    watched = [ProfilerActivity.CUDA if on_a_gpu else ProfilerActivity.CPU]
    with profile(activities=watched) as profiler:
        for _ in range(STEPS):
            work()
    order = f"self_{args.device}_time_total"
    print(profiler.key_averages().table(sort_by=order, row_limit=ROWS, max_name_column_width=120))


if __name__ == "__main__":
    main()
