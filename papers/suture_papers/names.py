"""The names that this package adds to Suture's, by kind (``suture.common.plugins``)."""


def _in(registry: str, names: str) -> dict[str, str]:
    return {name: f"{registry}:{name}" for name in names.split()}


def _classes(module: str, names: str) -> dict[str, str]:
    return {name: f"{module}:{name.title().replace('-', '')}" for name in names.split()}


NAMES: dict[str, dict[str, str]] = {
    "fit": _classes(
        "suture_papers.fits_of_others", "functional-latent-alignment match-penultimate relative-representations"
    )
    | _in(
        "suture_papers.recipes:RECIPES",
        "bansal2021 hernandez2022 hernandez2022-copy oxford2025 smith2024 smith2024-noise smith2024-vgg csiszarik2021 "
        "athanasiadis2025 mai2026",
    ),
    "variant": _in(
        "suture_papers.variants:VARIANTS",
        "subset half without relabelled random-labels super-classes objects-animals grey3 correlated digit colour "
        "colour-only decorrelated blacked-out",
    ),
    "measure": _classes(
        "suture_papers.complexity",
        "gradient-norm mean-sharpness worst-sharpness top-eigenvalue hessian-trace gzip-size parameters flops "
        "numerical-rank effective-rank",
    )
    | {name: f"suture_papers.complexity:{name.upper()}" for name in ("landscape", "curvature", "size", "ranks")},
    "recipe": _in(
        "suture_papers.networks.recipes:RECIPES",
        "bansal2021 bansal2021-myrtle bansal2021-vit oxford2025 oxford2025-simple oxford2025-complex smith2024 "
        "smith2024-vgg simclr linear digits fast fast-steps fast-vit fast-mnist stepped simclr-small oxford-small "
        "oxford-small-mlp oxford-small-retrained simple-small complex-small smith-vgg-small smith-vgg-slow",
    ),
    "network": _in("suture_papers.networks:NETWORKS", "cnn convnet mlp myrtle resnet resnet164 resnet50 vgg19 vit"),
    "study": _in(
        "suture_papers:STUDIES",
        "bansal-2A bansal-2A-disjoint bansal-2A-random bansal-2B bansal-2C bansal-3A bansal-3B bansal-3C bansal-4 "
        "bansal-5 bansal-6 bansal-7 bansal-8 bansal-9 bansal-probe bansal-invariance bansal-fold hernandez-2 "
        "hernandez-2d hernandez-3 hernandez-random-both hernandez-random-receiver hernandez-random-sender "
        "hernandez-copy hernandez-triangle oxford-4.1-mlp oxford-4.1-cnn oxford-4.2 oxford-4.3a oxford-4.3b "
        "oxford-4.4-fig5 oxford-4.4-fig6 oxford-6.1 oxford-6.2 oxford-control oxford-alone smith-4.1 smith-1c "
        "smith-4.2 smith-4.2-noise smith-C1 smith-C5 smith-C2",
    ),
}
