"""The LiDP paper's words for its figures' panels."""

from experiments.sweeps.rows import Claim, PaperClaims

CLAIMS: PaperClaims = {
    ("lidp_figure_3", "over n", None): Claim("orders 2 and 4 need 4 to 16 times fewer runs than K = 1", "4"),
    ("lidp_figure_3", "over K", None): Claim("rises up to a point, then falls; 32 to 256 are good", "4"),
    ("lidp_figure_3", "over d", None): Claim("tighter monotonically as d grows", "4"),
    ("lidp_figure_4", "gains", None): Claim("bias falls with K; variance gain rises, then saturates", "4"),
    ("lidp_figure_4", "over K", None): Claim("both decay roughly as 1/K", "4"),
    ("lidp_figure_4", "over d", None): Claim("both decay roughly as 1/d", "4"),
}
