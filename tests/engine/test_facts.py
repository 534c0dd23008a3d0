from llmhostd_openvino.facts import caveats, hardware_precisions

from llmhostd.domain.model import ComputePrecision

SAPPHIRE_RAPIDS = {"avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8"}


def test_this_engine_says_its_name_version_and_what_it_computes(engine) -> None:
    facts = engine.facts()
    assert (facts.name, facts.version) == ("openvino", "2026.4.1")
    assert ComputePrecision.F32 in facts.compute


def test_a_cpu_with_everything_has_no_caveats() -> None:
    assert caveats(SAPPHIRE_RAPIDS) == ()
    assert hardware_precisions(SAPPHIRE_RAPIDS) == (ComputePrecision.BF16, ComputePrecision.F32)


def test_what_is_missing_is_said() -> None:
    for lacking, says in (
        ({"amx_bf16", "amx_int8"}, "bf16 runs on AVX-512 BF16, not AMX"),
        ({"amx_bf16", "amx_int8", "avx512_bf16"}, "no bf16 instructions"),
        ({"amx_int8", "avx512_vnni"}, "no VNNI instructions"),
        (SAPPHIRE_RAPIDS - {"avx2"}, "no AVX-512"),
    ):
        assert any(one.startswith(says) for one in caveats(SAPPHIRE_RAPIDS - lacking)), lacking
    assert hardware_precisions({"avx2", "avx512f"}) == (ComputePrecision.F32,)
