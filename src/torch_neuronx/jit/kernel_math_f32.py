"""The functions of f32 that occur often, free of branches and calls, so that loops over them vectorise.

An argument is reduced to a small interval, where a polynomial does the rest (Cody and Waite, "Software Manual for the
Elementary Functions", 1980; Muller, "Elementary Functions", 2016). The polynomials are minimax approximations to the
relative error of the result, found by Lawson's algorithm. Errors are below 2.5 units in the last place, those of
`erfinv` below 3.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .expressions import Term, copysign, fma, polynomial, where

__all__ = ["ERFINV_TAIL_F64", "FUNCTIONS", "erfinv_from"]

_INF, _NAN = math.inf, math.nan
_LOG2E = math.log2(math.e)

# ln 2 in two parts, the first with so few bits that its product with an exponent is exact.
_LN2_HIGH, _LN2_LOW = 0.693145751953125, 1.42860682030941723212e-6

# Adding 1.5 * 2**23 (2**52) rounds a small number to an integer, which stands in the low bits of the sum.
_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000
_ROUNDER_F64 = 6755399441055744.0

_SQRT_HALF_BITS, _SQRT_HALF_BITS_F64 = 0x3F3504F3, 0x3FE6A09E667F3BCD

# (exp(r) - 1 - r) / r**2 on |r| <= ln(2) / 2, relative to exp and to expm1.
_EXP = (0.49999993450971963, 0.16666520679042546, 0.041668387490406855, 0.00836871113288864, 0.0013814610428168701)
_EXPM1 = (
    0.5000000044142497,
    0.1666666637060856,
    0.041666361012564684,
    0.008333389350582839,
    0.001394061890876883,
    0.00019845877159453863,
)
# (2**r - 1) / r on |r| <= 1/2.
_EXP2 = (
    0.6931472062790348,
    0.2402265134669584,
    0.05550327724721254,
    0.009618003789665023,
    0.0013400296372935564,
    0.00015476329383983079,
)
_EXP2_F64 = (
    0.6931471805599513,
    0.24022650695716935,
    0.055504108664339975,
    0.009618129182631493,
    0.0013333558248166553,
    0.00015403439851276464,
    1.5252646933218986e-05,
    1.325855409679723e-06,
    1.0210605239576708e-07,
)
# (log(1 + f) - f + f**2 / 2) / f**3 for 1 + f in [sqrt(1/2), sqrt(2)].
_LOG = (
    0.33333312604081633,
    -0.25000009599334816,
    0.20002118657714815,
    -0.16667995856683204,
    0.14219552381660625,
    -0.12405588884354452,
    0.1188816209558144,
    -0.11675651967512754,
    0.06746641053732141,
)
# log2((1 + s) / (1 - s)) / s as a polynomial of s**2 on the same interval.
_LOG2_F64 = (
    2.8853900817779263,
    0.9617966939249807,
    0.5770780171171274,
    0.41219840862975377,
    0.32061655595115335,
    0.261425339150375,
    0.24325258423755292,
)
# (sin(r) - r) / r**3 and (cos(r) - 1 + r**2 / 2) / r**4 as polynomials of r**2 on |r| <= pi / 4.
_SIN = (-0.16666654602239486, 0.00833216029012376, -0.00019515217921606737)
_COS = (0.04166664567014378, -0.0013887315616025729, 2.4433082641265546e-05)
_SIN_F64 = (
    -0.16666666666630323,
    0.008333333325072374,
    -0.00019841263725531278,
    2.755533896324062e-06,
    -2.476040182399458e-08,
)
_COS_F64 = (
    0.041666666666596505,
    -0.0013888888877593613,
    2.4801580694985924e-05,
    -2.7555520319902604e-07,
    2.0644914968868427e-09,
)
# erf(x) / x as a polynomial of x**2 on |x| <= 1, and -log(erfc(x)) on [0.9, 4].
_ERF = (
    1.1283791657267122,
    -0.37612625824228385,
    0.11283585148562993,
    -0.026853811933202992,
    0.005188327681814133,
    -0.0008010193591258673,
    7.853861242695568e-05,
)
_LOG_ERFC = (
    0.00016644480882948434,
    1.12779725526577,
    0.6369760599007804,
    0.10411370111318419,
    -0.02231522484042492,
    0.003065493518466969,
    -0.00019822001142947906,
)
# exp(x**2) * erfc(x) on [0.5, 10.2] as a polynomial of (x - 3) / (x + 3).
_ERFCX_F64 = (
    0.1790011511924795,
    -0.32623356071729054,
    0.24560380094804998,
    -0.15011589878627649,
    0.07166584240620695,
    -0.024393083084023673,
    0.004269097845571622,
    0.0007115015304969082,
    -0.0005962764967214753,
    3.4247602896821496e-05,
    5.946280734955102e-05,
)
# erfinv(x) / x as polynomials of w - 2.5 for w = -log(1 - x**2) < 5, and of sqrt(w) - 3 above (Giles, "Approximating
# the erfinv function", 2010).
_ERFINV = (
    1.501409359282305,
    0.2466402861550936,
    -0.004177386780056605,
    -0.0012527418821274906,
    0.00021834443856961808,
    -4.9633456594965495e-06,
    -3.4627045331989652e-06,
    4.6617018376746757e-07,
    2.3232625929834865e-08,
    -8.79102168356961e-09,
)
_ERFINV_TAIL = (
    2.8329768012433996,
    1.001674967027002,
    0.009445286446730082,
    -0.007637289052835712,
    0.005686973797591525,
    -0.0035974051105715716,
    0.0014850915529425622,
    -5.6776700763183666e-05,
    -0.00030957222240322397,
    0.00011570369739063482,
)
# The same up to w = 37.5, beyond which 1 - x has no f64.
ERFINV_TAIL_F64 = (
    2.832976994651181,
    1.001684577905084,
    0.009440402874363804,
    -0.0077323116219785125,
    0.0057559994764999145,
    -0.003359818376192516,
    0.0012153309496214348,
    -0.00018132261030542968,
    -2.8314696728325065e-05,
    1.4164448281831784e-05,
    -1.4658404312354805e-06,
)

# -- Exponentials of f32 ----------------------------------------------------------------------------------------------


def _split(x: Term) -> tuple[Term, Term]:
    """r and the integer n with x = n * ln(2) + r, |r| <= ln(2) / 2; for |x| < 2**20."""
    rounded = fma(x, _LOG2E, _ROUNDER)
    n = rounded - _ROUNDER
    r = fma(n, -_LN2_LOW, fma(n, -_LN2_HIGH, x))
    return r, rounded.bits() - _ROUNDER_BITS


def _power_of_two(n: Term) -> Term:
    return ((n + 127) << 23).as_float()


def _scaled(x: Term, n: Term) -> Term:
    """x * 2**n with one rounding for n in [-150, 129], where 2**n itself may be no normal number."""
    half = n >> 1
    return x * _power_of_two(half) * _power_of_two(n - half)


def _exp(x: Term) -> Term:
    r, n = _split(x.clamped(-104.0, 89.0))
    return _scaled(fma(r * r, polynomial(r, _EXP), r) + 1.0, n)


def _exp2(x: Term) -> Term:
    x = x.clamped(-151.0, 129.0)
    rounded = x + _ROUNDER
    r = x - (rounded - _ROUNDER)
    return _scaled(fma(r, polynomial(r, _EXP2), 1.0), rounded.bits() - _ROUNDER_BITS)


def _expm1(x: Term) -> Term:
    r, n = _split(x.clamped(-18.0, 89.0))
    p = fma(r * r, polynomial(r, _EXPM1), r)
    # Halved, because 2**128 is no number: exp(x) - 1 = 2 * (2**(n - 1) * p + (2**(n - 1) - 1/2)).
    scale = _power_of_two(n - 1)
    return copysign(fma(scale, p, scale - 0.5) * 2.0, x)


def _sigmoid(x: Term) -> Term:
    # By the exponential of a number below zero, which neither overflows nor loses the result's digits.
    e = _exp(-abs(x))
    return where(x.lt(0.0), e, 1.0) / (e + 1.0)


def _tanh(x: Term) -> Term:
    # expm1(2x) / (expm1(2x) + 2); from 10 on the result is 1.
    r, n = _split((abs(x) * 2.0).clamped(0.0, 20.0))
    scale = _power_of_two(n)
    t = fma(scale, fma(r * r, polynomial(r, _EXPM1), r), scale - 1.0)
    return copysign(t / (t + 2.0), x)


# -- Logarithms of f32 ------------------------------------------------------------------------------------------------


def _log_parts(x: Term) -> tuple[Term, Term]:
    """The integer e, and f, with x = 2**e * (1 + f), 1 + f in [sqrt(1/2), sqrt(2)), for a number x > 0."""
    small = x.lt(2.0**-126)
    bits = where(small, x * 2.0**23, x).bits() - _SQRT_HALF_BITS
    e = bits >> 23
    f = ((bits & 0x7FFFFF) + _SQRT_HALF_BITS).as_float() - 1.0
    return e - where(small, e.like(23), 0), f


def _log1p_small(f: Term) -> Term:
    """log(1 + f) - f."""
    square = f * f
    return fma(square, -0.5, f * square * polynomial(f, _LOG))


def _log_sum(e: Term, f: Term) -> Term:
    """e * log(2) + log(1 + f)."""
    return fma(e, _LN2_HIGH, f + fma(e, _LN2_LOW, _log1p_small(f)))


def _log_specials(x: Term, result: Term) -> Term:
    result = where(x.eq(_INF), x, result)
    result = where(x.eq(0.0), x.like(-_INF), result)
    negative = Term(x.code, x.code.emit(f"fcmp ult {x.type_} {x.name}, 0.0"), "i1")  # or NaN
    return where(negative, x.like(_NAN), result)


def _log(x: Term) -> Term:
    e, f = _log_parts(x)
    return _log_specials(x, _log_sum(e.to("float"), f))


def _log_base(x: Term, scale: float, unit: float) -> Term:
    """The logarithm to a base: `scale` is the one of e to it, `unit` that of 2."""
    n, f = _log_parts(x)
    e = n.to("float")
    natural = f + _log1p_small(f)
    scale_high, unit_high = _leading_bits(scale), _leading_bits(unit)
    low = fma(natural, scale - scale_high, e * (unit - unit_high))
    return _log_specials(x, fma(e, unit_high, fma(natural, scale_high, low)))


def _leading_bits(x: float) -> float:
    """`x` cut to 12 bits, so that the product with a small integer is exact in f32."""
    fraction, exponent = math.frexp(x)
    return math.ldexp(math.floor(fraction * 4096), exponent - 12)


def _log1p(x: Term) -> Term:
    # 1 + x is u + c exactly; c joins f, which is exact for small x.
    u = x + 1.0
    b = u - 1.0
    c = (1.0 - (u - b)) + (x - b)
    e, f = _log_parts(u)
    # 2**-e, but for so large an x that c means nothing.
    f = fma(_power_of_two(-where(e.gt(120), e.like(120), e)), c, f)
    return copysign(_log_specials(u, _log_sum(e.to("float"), f)), x)


# -- Trigonometric functions of f32 -----------------------------------------------------------------------------------

_PI_2_HIGH, _PI_2_LOW = 1.5707963267948966, 6.123233995736766e-17


def _quadrant(x: Term) -> tuple[Term, Term]:
    """r (f64) and the integer q with x = q * pi/2 + r, |r| <= pi/4, as exact as f64 is for |x| < 2**50.

    Larger ones, far above what f32 resolves, give some r.
    """
    wide = x.to("double")
    rounded = fma(wide, 2 / math.pi, _ROUNDER_F64)
    n = rounded - _ROUNDER_F64
    return fma(n, -_PI_2_LOW, fma(n, -_PI_2_HIGH, wide)), rounded.bits().to("i32")


def _sin_or_cos(x: Term, ahead: int) -> Term:
    """The sine of x + `ahead` * pi/2."""
    wide, q = _quadrant(x)
    r = wide.to("float").clamped(-0.8, 0.8)
    q = q + ahead if ahead else q
    square = r * r
    sin = fma(r * square, polynomial(square, _SIN), r)
    cos = fma(square * square, polynomial(square, _COS), fma(square, -0.5, 1.0))
    sign = (q & 2) << 30
    return (where((q & 1).eq(0), sin, cos).bits() ^ sign).as_float()


def _sin(x: Term) -> Term:
    return where(x.eq(0.0), x, _sin_or_cos(x, 0))


def _cos(x: Term) -> Term:
    return _sin_or_cos(x, 1)


def _tan(x: Term) -> Term:
    r, q = _quadrant(x)
    r = r.clamped(-0.8, 0.8)
    square = r * r
    sin = fma(r * square, polynomial(square, _SIN_F64), r)
    cos = fma(square * square, polynomial(square, _COS_F64), fma(square, -0.5, 1.0))
    even = (q & 1).eq(0)
    return where(x.eq(0.0), x, (where(even, sin, -cos) / where(even, cos, sin)).to("float"))


# -- The error function -----------------------------------------------------------------------------------------------


def _erf(x: Term) -> Term:
    a = abs(x)
    a = where(a.gt(4.0), a.like(4.0), a)
    r, n = _split(-polynomial(a, _LOG_ERFC))
    erfc = fma(r * r, polynomial(r, _EXP), r) + 1.0
    small = _erf_small(a)
    return copysign(where(a.lt(0.95), small, 1.0 - erfc * _power_of_two(n)), x)


def _erf_small(x: Term) -> Term:
    # Not x times the polynomial: only the small part of the sum gets its rounding errors.
    return fma(x, polynomial(x * x, (_ERF[0] - 1.0, *_ERF[1:])), x)


def _erfc(x: Term) -> Term:
    wide = x.to("double").clamped(-4.0, 10.2)
    a = abs(wide)
    t = (a - 3.0) / (a + 3.0)
    tail = polynomial(t, _ERFCX_F64) * _exp2_f64(a * a * -_LOG2E)
    tail = where(wide.lt(0.0), 2.0 - tail, tail)
    return where(abs(x).lt(0.5), 1.0 - _erf_small(x), tail.to("float"))


def _erfinv(x: Term) -> Term:
    w = -_log((1.0 - x) * (x + 1.0))
    return erfinv_from(x, w, _ERFINV_TAIL)


def erfinv_from(x: Term, w: Term, tail: tuple[float, ...]) -> Term:
    near = polynomial(w - 2.5, _ERFINV)
    far = polynomial(w.call("sqrt") - 3.0, tail)
    result = where(w.lt(5.0), near, far) * x
    return where(abs(x).eq(1.0), copysign(_INF, x), result)


# -- Powers -----------------------------------------------------------------------------------------------------------


def _exp2_f64(x: Term) -> Term:
    """2**x to some 45 bits for |x| < 1000."""
    rounded = x + _ROUNDER_F64
    r = x - (rounded - _ROUNDER_F64)
    return fma(r, polynomial(r, _EXP2_F64), 1.0) * ((rounded.bits() + 1023) << 52).as_float()


def _log2_f64(x: Term) -> Term:
    """log2(x) to some 50 bits, for a normal number x > 0."""
    bits = x.bits() - _SQRT_HALF_BITS_F64
    # The exponent becomes a number without a conversion, which AVX2 has not: biased, in the low bits of 2**52.
    biased = (bits + (1023 << 52)).shifted_down(52) | 0x4330000000000000
    e = biased.as_float() - (2.0**52 + 1023)
    m = ((bits & 0x000FFFFFFFFFFFFF) + _SQRT_HALF_BITS_F64).as_float()
    s = (m - 1.0) / (m + 1.0)
    return fma(s, polynomial(s * s, _LOG2_F64), e)


def _pow(x: Term, y: Term) -> Term:
    wide, wide_y = abs(x).to("double"), y.to("double")
    log = _log2_f64(wide)
    log = where(wide.eq(0.0), log.like(-_INF), where(wide.eq(_INF), log.like(_INF), log))
    result = _exp2_f64((wide_y * log).clamped(-300.0, 300.0)).to("float")
    # -1 to an infinite power, and 1.
    result = where(abs(x).eq(1.0), x.like(1.0), result)
    whole = y.call("trunc").eq(y)
    half = y * 0.5
    odd = whole & half.call("trunc").ne(half)
    negative = Term(x.code, x.code.emit(f"icmp slt i32 {x.bits().name}, 0"), "i1")
    result = where(odd & negative, -result, result)
    no_number = x.lt(0.0) & (whole ^ -1) & x.gt(-_INF)
    result = where(no_number | x.is_nan() | y.is_nan(), x.like(_NAN), result)
    return where(y.eq(0.0) | x.eq(1.0), x.like(1.0), result)


FUNCTIONS: dict[str, Callable[..., Term]] = {
    "exp": _exp,
    "exp2": _exp2,
    "expm1": _expm1,
    "log": _log,
    "log2": lambda x: _log_base(x, _LOG2E, 1.0),
    "log10": lambda x: _log_base(x, math.log10(math.e), math.log10(2)),
    "log1p": _log1p,
    "sin": _sin,
    "cos": _cos,
    "tan": _tan,
    "tanh": _tanh,
    "sigmoid": _sigmoid,
    "erf": _erf,
    "erfc": _erfc,
    "erfinv": _erfinv,
    "pow": _pow,
}
