"""The hidden-state paper's words for its figures' series."""

from experiments.sweeps.rows import Claim, PaperClaims

CLAIMS: PaperClaims = {
    ("figure_1a", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1a", "L", None): Claim("not tight", "5.2"),
    ("figure_1b", "GC-R", None): Claim("tight", "5.2"),
    ("figure_1b", "L", None): Claim("not tight", "5.2"),
    ("figure_1c", "L", None): Claim("below GC-R", "5.2"),
    ("figure_1c", "GC-R", None): Claim("not tight", "5.2"),
    ("figure_1c", "GC-S, noiseless per step", None): Claim("nearly tight", "5.2"),
    ("figure_2a", "GC-R", None): Claim("not tight", "5.3"),
    ("figure_2a", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_2b", "GC-R", None): Claim("below k = 5", "5.3"),
    ("figure_2b", "L", None): Claim("far below GC-R", "5.3"),
    ("figure_4", "GC-S, noiseless per step", None): Claim("best of the 4", "Appendix C"),
    ("figure_5", "GC-R", 1): Claim("tight", "5.2"),
    ("figure_5", "GC-R", 5): Claim("not tight", "5.3"),
    ("figure_5", "GC-S, noiseless per step", None): Claim("as GC-R", "Appendix C"),
    ("figure_6a", "GC-R", None): Claim("Gaussian curve", "Appendix E"),
    ("figure_7", "GC-R", None): Claim("above CotS", "Appendix G"),
    ("figure_7", "CotS", None): Claim("above L", "Appendix G"),
    ("figure_11", "k = 1", None): Claim("tight", "Appendix G"),
    ("figure_11", "k = 5", None): Claim("not tight", "Appendix G"),
    ("figure_11", "k = 25", None): Claim("not tight", "Appendix G"),
    ("figure_12", "unknown", None): Claim("as known", "Appendix G"),
    ("figure_13", "MobileNetV2's head", None): Claim("tight (AlexNet)", "Appendix G"),
    ("landscape", "B = 16", None): Claim("tight", "Appendix G"),
}
