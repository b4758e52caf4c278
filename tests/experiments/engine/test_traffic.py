"""Bytes that are read and written, counted in XLA's text."""

import jax
import jax.numpy as jnp
import pytest

from experiments.engine import traffic

TEXT = """HloModule a_program

%fused (p.0: f32[100,8], p.1: s32[]) -> f32[1,8] {
  %p.0 = f32[100,8]{1,0} parameter(0)
  %p.1 = s32[] parameter(1)
  %zero = s32[] constant(0)
  ROOT %cut = f32[1,8]{1,0} dynamic-slice(%p.0, %p.1, %zero), dynamic_slice_sizes={1,8}
}

%fused.1 (q.0: f32[100,8], q.1: f32[1,8]) -> f32[100,8] {
  %q.0 = f32[100,8]{1,0} parameter(0)
  %q.1 = f32[1,8]{1,0} parameter(1)
  %zero.1 = s32[] constant(0)
  ROOT %put = f32[100,8]{1,0} dynamic-update-slice(%q.0, %q.1, %zero.1, %zero.1)
}

%body (state: (s32[], f32[100,8])) -> (s32[], f32[100,8]) {
  %state = (s32[], f32[100,8]{1,0}) parameter(0)
  %i = s32[] get-tuple-element(%state), index=0
  %x = f32[100,8]{1,0} get-tuple-element(%state), index=1
  %row = f32[1,8]{1,0} fusion(%x, %i), kind=kLoop, calls=%fused
  %next = f32[100,8]{1,0} fusion(%x, %row), kind=kLoop, calls=%fused.1
  ROOT %out = (s32[], f32[100,8]{1,0}) tuple(%i, %next)
}

%condition (state.1: (s32[], f32[100,8])) -> pred[] {
  %state.1 = (s32[], f32[100,8]{1,0}) parameter(0)
  %counter = s32[] get-tuple-element(%state.1), index=0
  %end = s32[] constant(20)
  ROOT %more = pred[] compare(%counter, %end), direction=LT
}

ENTRY %main (a: f32[100,8]) -> f32[100,100] {
  %a = f32[100,8]{1,0} parameter(0)
  %start = s32[] constant(0)
  %initial = (s32[], f32[100,8]{1,0}) tuple(%start, %a)
  %loop = (s32[], /*index=1*/f32[100,8]{1,0}) while(%initial), condition=%condition, body=%body
  %last = f32[100,8]{1,0} get-tuple-element(%loop), index=1
  %gemm = (f32[100,100]{1,0}, s8[4096]{0}) custom-call(%last, %a), custom_call_target="__cublas$lt$matmul"
  ROOT %product = f32[100,100]{1,0} get-tuple-element(%gemm), index=0
}
"""
ROW, ALL, PRODUCT = 4 * 8, 4 * 800, 4 * 10_000


def test_a_kernel_reads_what_it_cuts_out_and_writes_what_it_puts_in():
    a_round = (ROW + 4 + ROW) + (ROW + ROW)  # the row is read, beside its number, and written twice
    assert traffic.moved(traffic.parsed(TEXT), 1) == 20 * a_round + 2 * ALL + PRODUCT


@pytest.mark.parametrize(
    ("before", "after", "times"),
    [
        ("direction=LT", "direction=LT", 20),
        ("body=%body", 'body=%body, backend_config={"known_trip_count":{"n":"3"}}', 3),
        ("constant(20)", "get-tuple-element(%state.1), index=0", 7),
    ],
    ids=["compared", "known", "the data's"],
)
def test_a_loop_repeats_as_the_program_says_or_else_as_it_is_told(before, after, times):
    program = traffic.parsed(TEXT.replace(before, after))
    assert traffic.operations(program, 7)["dynamic-slice"] == times


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        ("f32[3,5]{1,0}", 60),
        ("bf16[3,5]{1,0:T(8,128)(2,1)}", 2 * 8 * 128),
        ("f32[3,5]{0,1:T(8,128)}", 4 * 8 * 128),
        ("f32[10,3,200]{2,0,1:T(8,128)}", 4 * 16 * 3 * 256),
        ("f32[3,5]{1,0:T(8,128)S(1)}", 0),
        ("(f32[2]{0}, /*index=1*/pred[3]{0}, token[])", 11),
        ("u32[]", 4),
    ],
)
def test_arrays_are_as_large_as_they_lie(kind, size):
    assert traffic.size(kind) == size


def test_a_program_of_this_processor_moves_its_arrays_once():
    def double(x):
        return 2 * jnp.tanh(x) + 1

    text = jax.jit(double).lower(jax.ShapeDtypeStruct((1000,), jnp.float32)).compile().as_text()
    assert traffic.moved(traffic.parsed(text), 1) == 2 * 4000
