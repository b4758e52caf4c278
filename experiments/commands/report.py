"""Write a self-contained HTML page on audits that are done.

    ./run.sh report                                    the newest audit in results/, or federated run
    ./run.sh report --setting=1f3a,77c0                settings by hash, or all of them: --setting=all
    ./run.sh report --sweep=figure_1c --scale=laptop   every finished cell of a sweep

It reads the store alone, trains nothing and opens offline.
"""

from absl import flags

from audit.commands import cli
from audit.commands import report as settings_report
from audit.errors import require
from audit.settings import stored
from experiments.sweeps import registry

FLAGS = flags.FLAGS
flags.DEFINE_string(
    "sweep", None, "A sweep's name, instead of settings; all at one delta, by default 1e-5."
)
flags.DEFINE_string("scale", "laptop", f"The sweep's scale: {', '.join(registry.SCALES)}.")


def main() -> None:
    """Writes the page on the settings or on the sweep that the flags name, from what the store holds."""
    # Without --sweep the page is on settings, and only a sweep has a scale.
    if FLAGS.sweep is None:
        scale_alone = FLAGS["scale"].present
        require(
            not scale_alone,
            f"--scale={FLAGS.scale} is a sweep's: name one with --sweep, or drop it",
        )
        settings_report.main()
        return
    require(FLAGS.setting is None, "--setting and --sweep do not go together: drop one")
    levels = settings_report.checked_levels()
    root = cli.folder()
    scale = FLAGS.scale
    require(
        scale in registry.SCALES, f"--scale={scale}: choose one of {', '.join(registry.SCALES)}"
    )
    sweeps = registry.sweeps(scale)
    choices = f"choose one of {', '.join(sweeps)}"
    require(FLAGS.sweep in sweeps, f"--sweep={FLAGS.sweep} is unknown: {choices}")
    from experiments.sweeps import page

    content, messages = page.sweep_page(sweeps[FLAGS.sweep], scale, stored.holdings(root), levels)
    settings_report.say_left_out(messages)
    settings_report.write(content, root / f"{FLAGS.sweep}_{scale}.html")


if __name__ == "__main__":
    cli.run(main)
