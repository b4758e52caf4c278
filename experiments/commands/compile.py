"""Compile all trainings for accelerators that need not be there.

    ./run.sh compile --device=v5e:2x2 --models=fcnn            one model for four TPU chips
    ./run.sh compile --device=v5e:2x2,v6e:2x2,h200             all models for three devices
    ./run.sh compile --device=h200 --precision=bf16 --json     another precision, as JSON

Before an accelerator is booked: does each program compile for it, how long does that take, how many models
do the devices hold at once (the chunk that a real audit would choose there, halved until the compiled program
fits), and how many bytes a model? Data are zeros of the real data's shapes; no accelerator is used, and
nothing is timed but the compiler.

TPUs want the tpu extra, v5e or v6e with a grid of chips; h200 wants the cuda extra.
"""

from absl import flags
from tqdm import tqdm

from audit.commands import cli
from audit.errors import require
from audit.settings.setting import PRECISIONS
from experiments.engine import ahead

FLAGS = flags.FLAGS
flags.DEFINE_list(
    "device", ["v5e:2x2"], "Devices, comma-separated: v5e:2x2, v6e:2x2 (any grid), h200."
)
flags.DEFINE_list("models", None, "Models, of audit and of federated; by default all.")
flags.DEFINE_string("precision", "float32", "Operands of DP-SGD's products: float32, tf32 or bf16.")
flags.DEFINE_bool("json", False, "Print one JSON object on stdout instead of tables.")


def main() -> None:
    """Parses the flags, compiles every program for every device, and prints what that took."""
    names = list(dict.fromkeys(FLAGS.device or ()))
    require(names, "--device is empty: give v5e:2x2, v6e:2x2 or h200")
    devices = list(map(ahead.target, names))
    programs = _chosen_programs()
    for name in names:
        ahead.require_compiler(name)
    compiled = []
    with tqdm(total=len(devices) * len(programs), leave=False) as bar:
        for device in devices:
            trainings = []
            for program in programs:
                bar.set_description(f"{device.name}: {program.model}")
                trainings.append(ahead.compiled_for(device, program))
                bar.update()
            compiled.append((device, trainings))
    if FLAGS.json:
        print(ahead.as_json(compiled))
    else:
        print(ahead.as_text(compiled))


def _chosen_programs() -> list[ahead.TrainingProgram]:
    """Returns the programs of the models that --models names; raises InputError for unknown names."""
    choices = f"choose one of {', '.join(PRECISIONS)}"
    require(FLAGS.precision in PRECISIONS, f"--precision={FLAGS.precision} is unknown: {choices}")
    programs = ahead.programs(FLAGS.precision)
    if FLAGS.models is None:
        return programs
    models = list(dict.fromkeys(program.model for program in programs))
    require(FLAGS.models, f"--models is empty: choose of {', '.join(models)}")
    for name in FLAGS.models:
        require(name in models, f"--models: {name!r} is unknown: choose of {', '.join(models)}")
    return [program for program in programs if program.model in FLAGS.models]


if __name__ == "__main__":
    cli.run(main)
