# SPDX-License-Identifier: MIT
"""`deepgemm.compat.deep_gemm`: what servers and tests call, against PyTorch spelled out."""

import inspect
import operator
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed")

import deepgemm  # noqa: E402
import deepgemm.compat  # noqa: E402
from deepgemm.compat import deep_gemm as dg  # noqa: E402
from test_torch import DEVICES, needs_gpu  # noqa: E402

E4M3 = torch.float8_e4m3fn


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)


def test_import_after_one_line():
    code = (
        "import deepgemm.compat; deepgemm.compat.install()\n"
        "import deep_gemm, deep_gemm.legacy\n"
        "from deep_gemm.utils import align, per_token_cast_to_fp8\n"
        "from deep_gemm.utils.layout import get_mn_major_tma_aligned_tensor\n"
        "from deep_gemm.testing import bench_kineto, calc_diff\n"
        "import deep_gemm.testing.numeric as n\n"
        "assert deep_gemm.__path__ and n.calc_diff is calc_diff\n"
        "assert deep_gemm.fp8_gemm_nt is deep_gemm.fp8_fp4_gemm_nt\n"
        "import sys; deepgemm.compat.uninstall(); assert 'deep_gemm' not in sys.modules\n"
        "sys.modules['deep_gemm'] = sys\n"
        "try: deepgemm.compat.install()\n"
        "except RuntimeError as error: print('imported already' in str(error))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.stdout.split() == ["True"], done.stderr


# What callers write, by position and by name: the parameters that their calls rely on.
SIGNATURES = {
    "fp8_gemm_nt": "a b d c recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast",
    "fp8_fp4_gemm_nt": "a b d c recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast",
    "cublaslt_gemm_nt": "a b d c",
    "m_grouped_fp8_fp4_gemm_nt_contiguous": (
        "a b d grouped_layout recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast "
        "use_psum_layout ensure_zero_padding expected_m_for_psum_layout"
    ),
    "m_grouped_fp8_fp4_gemm_nt_masked": (
        "a b d masked_m expected_m recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast"
    ),
    "fp8_m_grouped_gemm_nt_masked": (
        "a b d masked_m expected_m recipe recipe_a recipe_b compiled_dims disable_ue8m0_cast "
        "enable_overlap max_block_n signal"
    ),
    "k_grouped_fp8_gemm_nt_contiguous": (
        "a b d ks grouped_layout c recipe compiled_dims use_psum_layout"
    ),
    "get_theoretical_mk_alignment_for_contiguous_layout": "expected_m",
    "set_mk_alignment_for_contiguous_layout": "value",
    "get_tma_aligned_size": "size element_size",
    "get_mn_major_tma_aligned_tensor": "sf",
    "get_mn_major_tma_aligned_packed_ue8m0_tensor": "sf psum_layout",
    "get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor": (
        "sf grouped_layout ks gran_k k_alignment use_psum_layout"
    ),
    "transform_sf_into_required_layout": (
        "sf mn k recipe num_groups is_sfa disable_ue8m0_cast psum_layout"
    ),
    "per_token_cast_to_fp8": "x use_ue8m0 gran_k use_packed_ue8m0",
    "per_channel_cast_to_fp8": "x use_ue8m0 gran_k",
    "per_block_cast_to_fp8": "x use_ue8m0 gran_k",
    "testing.bench_kineto": "fn kernel_names num_tests",
    "testing.calc_diff": "x y",
    "testing.ignore_env": "name condition",
}
# Names that only have to be there, besides those out of scope.
NAMES = (
    "fp8_gemm_nn fp8_gemm_tn fp8_gemm_tt fp8_fp4_gemm_nn m_grouped_fp8_gemm_nt_contiguous "
    "m_grouped_fp8_gemm_nn_contiguous m_grouped_fp8_gemm_nt_masked align ceil_div "
    "get_mk_alignment_for_contiguous_layout get_m_alignment_for_contiguous_layout set_num_sms "
    "get_num_sms set_tc_util get_tc_util set_pdl get_pdl set_ignore_compile_dims "
    "set_block_size_multiple_of per_token_cast_to_fp4 transpose_packed_fp4 testing.count_bytes "
    "testing.get_arch_major testing.bench testing.test_filter"
)


def test_surface():
    for name, parameters in SIGNATURES.items():
        found = list(inspect.signature(operator.attrgetter(name)(dg)).parameters)
        assert found[: len(parameters.split())] == parameters.split(), name
    for name in NAMES.split():
        assert callable(operator.attrgetter(name)(dg)), name


# ---- casts and layouts -------------------------------------------------------------------


def cast(x, rows, columns, ue8m0):
    """A cast spelled out: whole blocks of `rows` x `columns`, the last ones padded with zeros.

    On the CPU: there PyTorch divides by 448, as the quantiser does; on a GPU it multiplies with the
    reciprocal, which may differ in the last bit.
    """
    x = x.cpu()
    m, n = x.shape
    padded = torch.zeros(dg.align(m, rows), dg.align(n, columns), device=x.device)
    padded[:m, :n] = x
    view = padded.view(padded.shape[0] // rows, rows, padded.shape[1] // columns, columns)
    scale = view.abs().amax(dim=(1, 3), keepdim=True).clamp(1e-4) / 448.0
    if ue8m0:
        scale = torch.exp2(torch.ceil(torch.log2(scale.double()))).float()
    codes = (view * (1.0 / scale)).to(E4M3).view(padded.shape)[:m, :n]
    return codes.contiguous(), scale[:, 0, :, 0].contiguous()


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("ue8m0", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_casts(device, ue8m0, dtype):
    x = torch.randn(256, 300, device=device).to(dtype)
    x[3] = 0
    x[128:, 128:256] = 0
    cases = [
        (dg.utils.per_token_cast_to_fp8(x, ue8m0), (1, 128)),
        (dg.utils.per_token_cast_to_fp8(x, ue8m0, gran_k=32), (1, 32)),
        (dg.utils.per_channel_cast_to_fp8(x, ue8m0), (128, 1)),
        (dg.utils.per_block_cast_to_fp8(x, ue8m0), (128, 128)),
    ]
    for (codes, scale), block in cases:
        expected, expected_scale = cast(x, *block, ue8m0)
        assert torch.equal(scale.cpu(), expected_scale)
        assert torch.equal(codes.cpu().view(torch.uint8), expected.view(torch.uint8))
    codes, packed = dg.utils.per_token_cast_to_fp8(x, True, use_packed_ue8m0=True)
    assert packed.dtype == torch.int32 and packed.shape == (256, 1)
    exponents = (cast(x, 1, 128, True)[1].view(torch.int32) >> 23).to(torch.uint8)
    assert torch.equal(packed.cpu().view(torch.uint8)[:, :3], exponents)
    with pytest.raises(NotImplementedError, match="fp4"):
        dg.utils.per_token_cast_to_fp4(x, True)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mn", [64, 97, 100])
@pytest.mark.parametrize("k", [1, 5, 56])
@pytest.mark.parametrize("groups", [0, 1, 3])
@pytest.mark.parametrize("transposed", [False, True])
def test_layouts(device, mn, k, groups, transposed):
    leading = (groups,) if groups else ()
    powers = torch.randint(1, 255, (*leading, mn, k), device=device, dtype=torch.int32)
    sf = (powers << 23).view(torch.float32)
    given = sf.mT.contiguous().mT if transposed else sf
    pitch = dg.get_tma_aligned_size(mn, 4)
    out = dg.get_mn_major_tma_aligned_tensor(given)
    assert torch.equal(out, sf) and out.stride()[-2:] == (1, pitch)
    assert pitch % 4 == 0 and mn <= pitch < mn + 4
    assert not groups or out.stride(0) == pitch * k
    packed = dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(given)
    assert packed.shape == (*leading, mn, -(-k // 4)) and packed.stride()[-2:] == (1, pitch)
    assert not groups or packed.stride(0) == pitch * packed.shape[-1]
    for column in range(packed.shape[-1] * 4):
        byte = (packed[..., column // 4] >> (8 * (column % 4))) & 0xFF
        expected = powers[..., column] if column < k else torch.zeros_like(byte)
        assert torch.equal(byte, expected)


def test_powers_of_two():
    x = torch.tensor([[1.0, 1.0000001, 2.5e-39, 3e38], [0.0, 0.75, 448.0, 2.0**-126]])
    up = dg.utils.ceil_to_ue8m0(x)
    assert up.tolist() == [[1.0, 2.0, 2.0**-126, 2.0**127], [2.0**-126, 1.0, 512.0, 2.0**-126]]
    packed = dg.utils.pack_ue8m0_to_int(up)
    bytes_of = packed.view(torch.uint8).tolist()
    assert bytes_of == [[127, 128, 1, 254], [1, 127, 136, 1]]
    for wrong in (x, up[:, :3], -up):
        with pytest.raises(ValueError, match="powers of two"):
            dg.utils.pack_ue8m0_to_int(wrong)


@pytest.mark.parametrize("device", DEVICES)
def test_k_grouped_layout(device):
    ks = [256, 0, 640, 128]
    powers = torch.randint(1, 255, (sum(ks) // 128, 36), device=device, dtype=torch.int32)
    layout = torch.tensor(ks, dtype=torch.int32, device=device)
    out = dg.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        (powers << 23).view(torch.float32), layout, ks, 128
    )
    expected, first = [], 0
    for k in ks:
        for start in range(0, k // 128, 4):
            word = torch.zeros(36, dtype=torch.int32, device=device)
            for j in range(min(4, k // 128 - start)):
                word |= powers[first + start + j] << (8 * j)
            expected.append(word)
        first += k // 128
    assert torch.equal(out, torch.stack(expected))
    again = dg.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
        (powers << 23).view(torch.float32), layout, None, 128
    )
    assert torch.equal(again, out)
    with pytest.raises(NotImplementedError, match="use_psum_layout"):
        dg.get_k_grouped_mn_major_tma_aligned_packed_ue8m0_tensor(
            powers.float(), layout, ks, 128, 128, True
        )
    with pytest.raises(NotImplementedError, match="psum_layout"):
        dg.get_mn_major_tma_aligned_packed_ue8m0_tensor(powers.float(), layout)


def test_transform_sf_into_required_layout():
    sf = torch.rand(5, 3)
    out = dg.transform_sf_into_required_layout(sf, 5, 300, (1, 128, 128), is_sfa=True)
    assert torch.equal(out, sf) and out.stride() == (1, 8)
    square = torch.rand(2, 4, 3)
    same = dg.transform_sf_into_required_layout(square, 500, 300, (128, 128), num_groups=2)
    assert same is square
    with pytest.raises(ValueError, match=r"expected \(2, 5, 3\)"):
        dg.transform_sf_into_required_layout(square, 600, 300, (128, 128), num_groups=2)
    with pytest.raises(ValueError, match="is_sfa"):
        dg.transform_sf_into_required_layout(sf, 5, 300, (1, 128, 128))


# ---- products ----------------------------------------------------------------------------


def value(codes, scale, rows, columns):
    wide = scale.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return codes.double() * wide[..., : codes.shape[-2], : codes.shape[-1]].double()


def check(d, expected, limit=1e-3):
    assert dg.testing.calc_diff(d, expected) < limit * limit * 10
    assert (d.double() - expected).norm() <= limit * 5 * expected.norm() + 1e-30


def pair(m, k, device, block=False):
    x = torch.randn(m, k, device=device, dtype=torch.bfloat16)
    return (dg.per_block_cast_to_fp8 if block else dg.per_token_cast_to_fp8)(x, use_ue8m0=False)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("m", [0, 1, 65])
@pytest.mark.parametrize("k", [128, 576, 300])
def test_fp8_gemm(device, m, k):
    n = 136
    a, b = pair(m, k, device), pair(n, k, device, block=True)
    expected = value(*a, 1, 128) @ value(*b, 128, 128).T
    for scale in (a[1], dg.get_mn_major_tma_aligned_tensor(a[1])):
        d = torch.full((m, n), 77, dtype=torch.bfloat16, device=device)
        assert dg.fp8_gemm_nt((a[0], scale), b, d) is None
        check(d, expected)
    d_nn = torch.empty_like(d)
    dg.fp8_gemm_nn(a, (b[0].t(), b[1].t()), d_nn)
    assert torch.equal(d_nn, d)
    dg.fp8_gemm_tn((a[0].t(), a[1].t()), (b[0].t(), b[1].t()), d_nn)
    assert torch.equal(d_nn, d)
    dg.fp8_gemm_tt((a[0].t(), a[1].t()), b, d_nn, alpha=2.0)
    check(d_nn, expected * 2)
    # Weight gradients: FP32, added to what is there.
    w = pair(n, k, device)
    expected = value(*a, 1, 128) @ value(*w, 1, 128).T
    total = torch.ones(m, n, device=device)
    dg.fp8_gemm_nt(a, w, total, c=total, recipe=(1, 1, 128))
    check(total, expected + 1)
    dg.fp8_gemm_nt(a, w, total, recipe_a=(1, 128), recipe_b=(1, 128))
    check(total, expected)
    addend = torch.full_like(total, 5)
    dg.fp8_gemm_nt(a, w, total, addend, (1, 1, 128))
    check(total, expected + 5)
    assert (addend == 5).all()
    with pytest.raises(ValueError, match="recipe"):
        dg.fp8_gemm_nt(a, w, total, recipe=(1, 1, 128), recipe_a=(1, 128))
    if m > 1:  # b [K, N] that is not contiguous along K
        with pytest.raises(deepgemm.InvalidArgument, match="contiguous"):
            dg.fp8_gemm_nn(a, (b[0].t().contiguous(), b[1].t()), d)


@pytest.mark.parametrize("device", DEVICES)
def test_nothing_to_do(device):
    """Without M or N nothing is written."""
    a, none = pair(8, 256, device), pair(0, 256, device, block=True)
    dg.fp8_gemm_nt(a, none, torch.empty(8, 0, dtype=torch.bfloat16, device=device))
    dg.fp8_gemm_nt((none[0], a[1][:0]), pair(128, 256, device, block=True),
                   torch.empty(0, 128, dtype=torch.bfloat16, device=device))  # fmt: skip


@pytest.mark.parametrize("device", DEVICES)
def test_the_peer(device):
    a, b = (torch.randn(n, 256, device=device).to(E4M3) for n in (32, 48))
    expected = a.double() @ b.double().T
    d = torch.empty(32, 48, device=device, dtype=torch.bfloat16)
    dg.cublaslt_gemm_nt(a, b, d)
    check(d, expected)
    dg.cublaslt_gemm_nt(a, b, d, torch.full_like(d, 64))
    check(d, expected + 64, limit=2e-3)


@pytest.mark.parametrize("device", DEVICES)
def test_no_k(device):
    a = torch.empty(4, 0, device=device, dtype=E4M3), torch.empty(4, 0, device=device)
    b = torch.empty(8, 0, device=device, dtype=E4M3), torch.empty(1, 0, device=device)
    d = torch.full((4, 8), 3.0, device=device)
    dg.fp8_gemm_nt(a, b, d, c=d)
    assert (d == 3).all()
    dg.fp8_gemm_nt(a, b, d)
    assert (d == 0).all()


def experts(count, n, k, device):
    pairs = [pair(n, k, device, block=True) for _ in range(count)]
    return tuple(torch.stack([one[i] for one in pairs]) for i in range(2))


@pytest.mark.parametrize("device", DEVICES)
def test_m_grouped_contiguous(device):
    count, n, k, alignment = 3, 72, 256, 16
    b = experts(count, n, k, device)
    real = [5, 0, 23]
    rows = sum(dg.align(size, alignment) for size in real)
    a = pair(rows, k, device)
    layout = torch.full((rows,), -1, dtype=torch.int32, device=device)
    ends, start = [], 0
    expected = torch.zeros(rows, n, dtype=torch.float64, device=device)
    for g, size in enumerate(real):
        part = slice(start, start + size)
        layout[part] = g
        ends.append(start + size)
        expected[part] = value(a[0][part], a[1][part], 1, 128) @ value(b[0][g], b[1][g], 128, 128).T
        start += dg.align(size, alignment)
    d = torch.full((rows, n), float("nan"), dtype=torch.bfloat16, device=device)
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, layout)
    check(d, expected)
    assert (d[layout < 0] == 0).all()
    before = dg.get_mk_alignment_for_contiguous_layout()
    assert before == dg.get_theoretical_mk_alignment_for_contiguous_layout() == 128
    dg.set_mk_alignment_for_contiguous_layout(alignment)
    try:
        psum = torch.tensor(ends, dtype=torch.int32, device=device)
        other = torch.full_like(d, 77)
        transposed = b[0].mT, b[1].mT
        dg.m_grouped_fp8_gemm_nn_contiguous(
            a, transposed, other, psum, use_psum_layout=True, ensure_zero_padding=False,
            expected_m_for_psum_layout=9,
        )  # fmt: skip
        assert torch.equal(other[layout >= 0], d[layout >= 0])
        assert (other[layout < 0] == 77).all()
    finally:
        dg.set_mk_alignment_for_contiguous_layout(before)


@pytest.mark.parametrize("device", DEVICES)
def test_gaps_are_not_read(device):
    """A masked layout taken as one of ends, with NaN in all rows behind the ends."""
    used, most, n, k = [32, 5, 7, 1], 32, 72, 256
    b = experts(4, n, k, device)
    a = pair(4 * most, k, device)
    parts = [slice(g * most, g * most + rows) for g, rows in enumerate(used)]
    gap = torch.ones(4 * most, dtype=torch.bool, device=device)
    for part in parts:
        gap[part] = False
    a[0].view(torch.uint8)[gap] = 0x7F
    a[1][gap] = float("nan")
    ends = torch.tensor([part.stop for part in parts], dtype=torch.int32, device=device)
    before = dg.get_mk_alignment_for_contiguous_layout()
    dg.set_mk_alignment_for_contiguous_layout(most)
    try:
        for zero in (False, True):
            d = torch.full((4 * most, n), 77, dtype=torch.bfloat16, device=device)
            dg.m_grouped_fp8_gemm_nt_contiguous(
                a, b, d, ends, use_psum_layout=True, ensure_zero_padding=zero
            )
            for g, part in enumerate(parts):
                left = value(a[0][part], a[1][part], 1, 128)
                check(d[part], left @ value(b[0][g], b[1][g], 128, 128).T)
            assert (d[gap] == (0 if zero else 77)).all()
    finally:
        dg.set_mk_alignment_for_contiguous_layout(before)


@pytest.mark.parametrize("device", DEVICES)
def test_m_grouped_masked(device):
    count, most, n, k = 4, 20, 72, 256
    b = experts(count, n, k, device)
    a = tuple(x.view(count, most, -1) for x in pair(count * most, k, device))
    used = torch.tensor([20, 0, 7, 1], dtype=torch.int32, device=device)
    d = torch.full((count, most, n), 77, dtype=torch.bfloat16, device=device)
    dg.m_grouped_fp8_gemm_nt_masked(a, b, d, used, expected_m=7)
    for g, rows in enumerate(used.tolist()):
        if rows:
            left = value(a[0][g, :rows], a[1][g, :rows], 1, 128)
            check(d[g, :rows], left @ value(b[0][g], b[1][g], 128, 128).T)
        assert (d[g, rows:] == 77).all()
    with pytest.raises(NotImplementedError, match="enable_overlap"):
        dg.fp8_m_grouped_gemm_nt_masked(a, b, d, used, 7, enable_overlap=True)


@pytest.mark.parametrize("device", DEVICES)
def test_k_grouped(device):
    m, n, ks = 24, 40, [256, 0, 128]
    parts_a = [torch.randn(m, k, device=device) for k in ks]
    parts_b = [torch.randn(n, k, device=device) for k in ks]

    def flat(parts):
        cast_parts = [dg.per_token_cast_to_fp8(p, False) for p in parts if p.shape[1]]
        codes = torch.cat([codes.reshape(-1) for codes, _ in cast_parts])
        scale = torch.cat([scale for _, scale in cast_parts], dim=1)
        return codes, scale.t().contiguous().t()

    layout = torch.tensor(ks, dtype=torch.int32, device=device)
    d = torch.full((3, m, n), 2.0, device=device)
    dg.k_grouped_fp8_gemm_nt_contiguous(flat(parts_a), flat(parts_b), d, ks, layout, c=d)
    for g, k in enumerate(ks):
        expected = torch.full((m, n), 2.0, dtype=torch.float64, device=device)
        if k:
            left, right = (dg.per_token_cast_to_fp8(p[g], False) for p in (parts_a, parts_b))
            expected += value(*left, 1, 128) @ value(*right, 1, 128).T
        check(d[g], expected)
    assert (d[1] == 2).all()
    with pytest.raises(NotImplementedError, match="use_psum_layout"):
        dg.k_grouped_fp8_gemm_nt_contiguous(
            flat(parts_a), flat(parts_b), d, ks, layout, use_psum_layout=True
        )


# Layers of served models (N, K): too large for the CPU's tests.
LAYERS = [(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168)]


@needs_gpu
@pytest.mark.parametrize("n,k", LAYERS)
def test_served_shapes(n, k):
    """Forward for few and many tokens, the gradient of the input, and that of the weights."""
    b = pair(n, k, "cuda", block=True)
    right = value(*b, 128, 128)
    for m in (1, 128, 1000):
        a = pair(m, k, "cuda")
        d = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
        dg.fp8_gemm_nt(a, b, d)
        check(d, value(*a, 1, 128) @ right.T)
    if n <= 7168:  # where K' is N, no multiple of 128 for some
        a, b = pair(1000, n, "cuda"), pair(k, n, "cuda", block=True)
        d = torch.empty(1000, k, dtype=torch.bfloat16, device="cuda")
        dg.fp8_gemm_nt(a, b, d)
        check(d, value(*a, 1, 128) @ value(*b, 128, 128).T)
        a, b = pair(n, 1000, "cuda"), pair(k, 1000, "cuda")
        total = torch.ones(n, k, device="cuda")
        dg.fp8_gemm_nt(a, b, total, c=total, recipe=(1, 1, 128))
        check(total, value(*a, 1, 128) @ value(*b, 1, 128).T + 1)


@needs_gpu
@pytest.mark.parametrize("n,k", [(6144, 7168), (7168, 3072), (4096, 2048)])
def test_served_experts(n, k):
    """Experts of a served model, by row and masked; the latter in a graph, with other sizes."""
    count, most = 6, 256
    b = experts(count, n, k, "cuda")
    a = pair(count * most, k, "cuda")
    layout = torch.arange(count, device="cuda", dtype=torch.int32).repeat_interleave(most)
    d = torch.full((count * most, n), float("nan"), dtype=torch.bfloat16, device="cuda")
    dg.m_grouped_fp8_gemm_nt_contiguous(a, b, d, layout)
    masked = tuple(x.view(count, most, -1) for x in a)
    pairs = zip(zip(*masked), zip(*b))
    expected = torch.stack([value(*x, 1, 128) @ value(*y, 128, 128).T for x, y in pairs])
    check(d, expected.view_as(d))
    used = torch.full((count,), most, dtype=torch.int32, device="cuda")
    d = torch.empty(count, most, n, dtype=torch.bfloat16, device="cuda")
    dg.m_grouped_fp8_gemm_nt_masked(masked, b, d, used, expected_m=20)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        dg.m_grouped_fp8_gemm_nt_masked(masked, b, d, used, expected_m=20)
    for sizes in ([20, 0, 256, 1, 17, 64], [0] * 6, [256, 255, 1, 128, 129, 3]):
        used.copy_(torch.tensor(sizes))
        d.fill_(77)
        graph.replay()
        for g, rows in enumerate(sizes):
            check(d[g, :rows], expected[g, :rows])
            assert (d[g, rows:] == 77).all()


@needs_gpu
def test_served_weight_gradients():
    """Experts' weight gradients in FP32, one of them with no tokens."""
    m, n, ks = 512, 1024, [1024, 0, 2176, 128]
    parts = [[pair(rows, k, "cuda") for k in ks if k] for rows in (m, n)]
    flat = [
        (torch.cat([c.reshape(-1) for c, _ in side]), torch.cat([s for _, s in side], 1).t())
        for side in parts
    ]
    a, b = ((codes, scale.contiguous().t()) for codes, scale in flat)
    layout = torch.tensor(ks, dtype=torch.int32, device="cuda")
    d = torch.full((4, m, n), 2.0, device="cuda")
    dg.k_grouped_fp8_gemm_nt_contiguous(a, b, d, ks, layout, c=d)
    products = iter([value(*x, 1, 128) @ value(*y, 1, 128).T for x, y in zip(*parts)])
    for g, k in enumerate(ks):
        check(d[g], (next(products) if k else 0) + torch.full_like(d[g], 2.0).double())


def test_out_of_scope():
    names = dg._OUT_OF_SCOPE
    assert "fp8_mqa_logits" in names and "k_grouped_fp8_gemm_tn_contiguous" in names
    for name in names:
        with pytest.raises(NotImplementedError, match=rf"deep_gemm\.{name} "):
            getattr(dg, name)(1, 2, x=3)
    for name in (
        "a_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
        "a_fused_m_grouped_bf16_gemm_nn_contiguous_tl",
        "a_fused_m_grouped_bf16_gemm_nt_contiguous_tl",
        "b_fused_k_grouped_bf16_gemm_tn_contiguous_tl",
        "m_grouped_bf16_gemm_nn_contiguous_tl",
        "m_grouped_bf16_gemm_nt_contiguous_tl",
    ):
        with pytest.raises(NotImplementedError, match=rf"legacy\.{name} "):
            getattr(dg.legacy, name)()
    for name in ("per_token_cast_to_fp4", "transpose_packed_fp4"):
        with pytest.raises(NotImplementedError, match=rf"utils\.{name} "):
            getattr(dg.utils, name)()
    a = pair(4, 128, "cpu")
    with pytest.raises(NotImplementedError, match="SM100"):
        dg.fp8_gemm_nt((a[0], a[1].int()), a, torch.empty(4, 4))
    with pytest.raises(NotImplementedError, match="fp8_gemm_nt: a has type torch.bfloat16"):
        dg.fp8_gemm_nt((torch.ones(4, 128).bfloat16(), a[1]), a, torch.empty(4, 4))


def test_settings():
    assert dg.get_num_sms() > 0 and dg.get_tc_util() == 100 and dg.get_pdl() is False
    dg.set_num_sms(100)
    assert dg.get_num_sms() == 100
    dg.set_num_sms(132)
    dg.set_pdl(True)
    dg.set_tc_util(90)
    assert dg.get_pdl() is True and dg.get_tc_util() == 90
    dg.set_block_size_multiple_of((16, 32))
    dg.set_ignore_compile_dims(True)


def test_testing(monkeypatch):
    x = torch.randn(100)
    assert dg.testing.calc_diff(x, x) == pytest.approx(0, abs=1e-15)
    assert dg.testing.calc_diff(x, -x) == pytest.approx(2)
    assert dg.testing.calc_diff(torch.zeros(3), torch.zeros(3)) == 0
    assert dg.testing.count_bytes(x, (x, [x, None])) == 1200
    monkeypatch.setenv("SOME_NAME", "1")
    seen = []
    dg.testing.ignore_env("SOME_NAME", lambda: True)(lambda: seen.append(os.getenv("SOME_NAME")))()
    dg.testing.ignore_env("SOME_NAME", lambda: False)(lambda: seen.append(os.getenv("SOME_NAME")))()
    assert seen == [None, "1"] and os.getenv("SOME_NAME") == "1"
    dg.testing.test_filter(lambda: False)(lambda: seen.append("ran"))()
    assert len(seen) == 2
    if not torch.cuda.is_available():
        calls = []
        assert 0 < dg.testing.bench(lambda: calls.append(1), 2, 3) < 1 and len(calls) == 5
        assert dg.testing.get_arch_major() == 9
        with pytest.raises(NotImplementedError, match="bench_kineto"):
            dg.testing.bench_kineto(lambda: None, "gemm_")
    monkeypatch.setenv("DG_USE_NVIDIA_TOOLS", "1")
    assert dg.testing.bench_kineto(lambda: 1 / 0, "gemm_") == 1
    assert dg.testing.bench_kineto(lambda: 1 / 0, ("gemm_", "x")) == (1, 1)


@needs_gpu
def test_one_kernel_a_call():
    """Profilers count on it: one kernel named gemm_ for each product, and none beside it."""
    a, b = pair(4096, 7168, "cuda"), pair(2112, 7168, "cuda", block=True)
    d = torch.empty(4096, 2112, device="cuda", dtype=torch.bfloat16)
    seconds = dg.testing.bench_kineto(lambda: dg.fp8_gemm_nt(a, b, d), "gemm_", num_tests=5)
    assert 1e-5 < seconds < 1e-2
    assert (
        dg.testing.bench_kineto(lambda: dg.fp8_gemm_nt(a, b, d), "no such kernel", num_tests=2) == 0
    )
    reference = torch.empty_like(d)
    dg.cublaslt_gemm_nt(a[0], b[0], reference)
    check(reference, a[0].double() @ b[0].double().T)
    assert dg.testing.bench(lambda: dg.fp8_gemm_nt(a, b, d)) > 1e-5
    assert dg.testing.get_arch_major() == 9 and deepgemm.Context("cuda").units > 0
