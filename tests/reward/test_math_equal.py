r"""Check which answers are equal: each line is `gold | answer`, as people write them."""

import pytest

from arl.reward.math.grader import canonical, equal

EQUAL = r"""
033 | 33
7 | 7.0
7 | +7
7 | (7)
-5 | −5
12 | １２
12 | ١٢
1,234 | 1234
10,\!080 | 10080
14{,}916 | 14 {, }916
11,\! 111,\! 111,\! 100 | 11111111100
1 000 000 | 1000000
58,500 | 58500
5 | $5.00
\$18.90 | 18.9
\$32,\!348 | 32,348 dollars
0.5 | 1/2
\frac12 | .5
\frac43 | \frac{4}{3}
\frac{3}{4} | .750
\frac{1}{2} | \frac{2}{4}
-\frac{1}{2} | \frac{1}{-2}
2\frac{1}{2} | \frac{5}{2}
137 \frac{1}{2} | 137.5
-\frac{7}{2} | -3\frac{1}{2}
½ | 0.5
1½ | 3/2
0.1\overline{6} | 1/6
.0000672 | 6.72 \times 10^{-5}
3×10^5 | 300000
2^{10} | 1024
2^{2008} | 4^{1004}
2007!\cdot 2008 | 2008!
10^{100} | 100^{50}
\frac{1}{2^{99}} | 2^{-99}
\sqrt{2}/2 | 1/\sqrt{2}
11\sqrt2 | 11\sqrt{2}
70 \sqrt{2} | \sqrt{9800}
2√3 | \sqrt{12}
3\pi/4 | \frac{3}{4}\pi
18+2\pi | 2(\pi+9)
\log_2 8 | 3
\frac{\ln 3}{\ln 2} | \log_2 3
2+3i | 3i+2
6 - 5i | -5\mathrm{i}+6
2e^{i\pi/3} | 1+\sqrt{3}i
x^2+2x+1 | (x+1)^2
x² | x^2
2k+2 | 2(k+1)
\frac{11+9a}{20} | 0.55+0.45a
\cot x | \frac{\cos x}{\sin x}
2^{2n} | 4^n
\frac{n(n-1)}{2} | \binom{n}{2}
\sqrt{x^3} | x\sqrt{x}
x=3 | 3
3 | x=3
5 | AB = 5
y = 2x + 3 | 2x+3
y = 2x + 3 | 2x - y + 3 = 0
5x - 7y + 11z + 4 = 0 | 7y-5x-11z=4
f(x)=x^2 | x^2
x = 2 + 3 = 5 | 5
\frac{1}{3} | x=\frac13\approx 0.33
(1,2) | 1,2
\left( 3, \frac{\pi}{2} \right) | (3, \pi/2)
(x,y)=(1,2) | (1,2)
p=5,q=2 | q=2, p=5
p=5,q=2;p=7,q=2 | (5,2),(7,2)
\{1,2\} | 2,1
1,-2 | -2, 1
3, 5, 7 | 7, 5, and 3
x=1, x=2 | 1 or 2
1 \pm \sqrt{19} | 1-\sqrt{19}, 1+\sqrt{19}
\{1\pm\sqrt{5},-2\} | -2, 1+\sqrt5, 1-\sqrt5
x = \pm 3 | -3 and 3
[2,\infty) | [2, +\infty)
[2,\infty) | x \ge 2
[0,1) | 0≤x<1
0\le x<1 | [0,1)
x \in [-2,7] | -2 \leq x \leq 7
(2,\infty) | \{x \mid x > 2\}
(-2,2) | |x|<2
(-\infty,2)\cup(3,\infty) | x<2 \text{ or } x>3
(-\infty,0)\cup(0,\infty) | x\neq 0
(-\infty, \infty) | \mathbb{R}
(-\infty, \infty) | all real numbers
\emptyset | no solution
\infty | infinity
\begin{pmatrix}1\\2\end{pmatrix} | \begin{bmatrix} 1 \\ 2 \end{bmatrix}
\begin{pmatrix} -1/3 \\ 2/3 \end{pmatrix} | \begin{pmatrix} -\frac{1}{3} \\ \frac23 \end{pmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \left[\begin{array}{cc} 1 & 2 \\ 3 & 4\end{array}\right]
45^\circ | 45
45^\circ | 45 degrees
\frac{270}7\text{ degrees} | \frac{270}{7}^\circ
5 | 5\text{ cm}
5\text{ cm} | 5cm
864 \mbox{ inches}^2 | 864 square inches
60 | 60\,\text{km/h}
5 apples | 5
5 million | 5,000,000
\frac{7}{2} | 3\frac{1}{2} hours
12\pi | 12\pi cm
3 | t = 3 \text{ s}
10\% | 10
10\% | 0.1
0.15 | 15\%
28 percent | 28\%
1/3 | 0.333333
\pi | 3.14159265
52_8 | 52_{8}
52_8 | 52
\text{(C)} | C
\text{(C)} | \textbf{(C) } 15
5 | (A) 5
\text{Evelyn} | evelyn
\text{ellipse} | an ellipse
even | \text{Even}
\text{3:30 p.m.} | 3:30 p.m.
3:2 | 6:4
2^{5}7 | 224
3^2 5^3 | 1125
\log_{2}16 | 4
\frac{1}{n} | \frac1n
\frac{\sqrt5}2 | \frac{\sqrt{5}}{2}
15 | \binom62
\frac12 | \cos 60^\circ
\tan 15^\circ | 2-\sqrt3
\sin^{-1}(x) | \arcsin x
\sqrt[3]{-8} | -2
-\frac12\pm\frac{\sqrt3}2i | \frac{-1\pm i\sqrt3}{2}
Yes | yes
abc | bca
B | B) A rhombus
D | D. 8\ \text{N}
C | \text{C: H}_2\text{O}
B | \text{Option (B)}
B | b
"""

UNEQUAL = r"""
033 | 330
33 | 3
18 | 18.5
18 | 1.8
1,234 | 1.234
1,234 | 234
32349 | 32, 349
(1,234) | 1234
1.2 | 1,2
10 | 1 0
46 | 12 34
5 | -5
0.5 | 0.05
\frac{1}{2} | \frac{2}{1}
\frac{4}{3} | 43
2\frac{1}{2} | 2
0.15 | 0.1500001
1000000 | 1000000.1
100 | 99.9999999
.0000672 | .000067
\frac{1}{2^{99}} | \frac{1}{2^{98}}
\frac{1}{2004!} | \frac{1}{2006!}
0 | 10^{-20}
0 | \frac{1}{10^{100}}
2008! | 2007!
e^{\pi\sqrt{163}} | 262537412640768744
1-\frac{1}{\mathrm{e}} | 1+\frac{1}{\mathrm{e}}
\sqrt{2} | 1.41
11\sqrt2 | 112
3\pi/4 | 3/4
1/3 | 0.3333
2+3i | 2-3i
i | 1
p - q | q - p
x | X
ab | AB
x^2+2x+1 | x^2+2x
\sqrt{x^2} | x
5x | 5
5m | 5
2k | 2
6 | xyz=6
3 | x+y=3
x+y=3 | 3
3 | 2x=3
7 = 11a+c | 11a+c
x=3 | y=3
3 | \pm 3
\pm 3 | 3
y = 2x + 3 | x = 2y+3
(1,2) | (2,1)
(1,2) | 2,1
(1,2) | [1,2]
(1,2) | (1,2,3)
\{1,2\} | \{1,2,3\}
1,2 | 1
5 | 5 or 6
[2,\infty) | (2,\infty)
[0,1) | 0<x<1
x<2 | x>2
x>2 | y>2
(-\infty,2)\cup(3,\infty) | (2,3)
(2,\infty) | \{x \mid x \ge 2\}
\infty | -\infty
\infty | nan
\emptyset | 0
\begin{pmatrix}1\\2\end{pmatrix} | \begin{pmatrix}2\\1\end{pmatrix}
\begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 1 & 3 \\ 2 & 4\end{pmatrix}
5\text{ cm} | 5\text{ m}
5 minutes | 5 hours
5 | 5 million
12 | 12\pi cm
5 | 5 (or maybe 6)
5 | 5 \neq 6
15\mbox{ cm}^2 | 15\text{ square inches}
5.4 \text{ cents} | 5.4 \text{ dollars}
10\% | 1
0.1 | 10
52_8 | 52_9
52_8 | 42
40 | 40_9
12:00 | 1:00
\frac13 | 10:30
3:2 | 2:3
\text{(A)} | B
A | (A) or (B)
A | AB
even | not even
\text{Evelyn} | Evelyn and Carla
\text{Navin} | Kevin
5 | nan
0 | None
0 | \text{}
3 | three hundred
2 | 2sin x
2^{5}7 | 2^{57}
\frac{1}{n} | \frac1m
\sin 20^\circ | \cos 20^\circ
no | on
B | A or B
B | B, C
B | C) A rhombus
\sum_{k=1}^{12} 3 | \sum_{k=1}^{1} 23
"""


def pairs(block: str) -> list[tuple[str, str]]:
    """Split each line at its first bar between spaces."""
    lines = [line.partition(" | ") for line in block.strip().splitlines()]
    return [(gold, answer) for gold, _, answer in lines]


@pytest.mark.parametrize(("gold", "answer"), pairs(EQUAL))
def test_an_answer_is_right_in_any_usual_form(gold: str, answer: str) -> None:
    assert equal(gold, answer)


@pytest.mark.parametrize(("gold", "answer"), pairs(UNEQUAL))
def test_another_answer_is_wrong_however_alike_it_looks(gold: str, answer: str) -> None:
    assert not equal(gold, answer)


@pytest.mark.parametrize("answer", [r"\pi \mod 3", r"\csc(\frac{1}{0})+y", r"\sinh(\ln((-3)!))", "0^0", r"\frac{1"])
def test_an_answer_without_a_value_is_wrong_and_no_error(answer: str) -> None:
    assert not equal(r"\frac{1}{2}", answer)
    assert not equal("x^2+1", answer)


@pytest.mark.parametrize("nothing", ["", " ", "$$", ".", r"\,"])
def test_nothing_equals_nothing_and_no_answer(nothing: str) -> None:
    assert not equal("0", nothing)
    assert not equal(nothing, nothing)


CANONICAL = {
    "1/2": [r"\frac{1}{2}", "0.5", "2/4", "$x = .50$", r"\dfrac12"],
    "1234": ["1,234", "1234.0", r"\$1{,}234", "1234 dollars"],
    "{1,2}": [r"\{2, 1\}", "1,2", "2 and 1", "x=1 or x=2"],
    r"[0,\infty)": [r"x \ge 0", r"[0,\infty)", r"0 \leq x"],
    "C": [r"\text{(C)}", "C", "(C)"],
    "2^{99999}": ["2^{99999}", "$2^{99999}$"],  # Python does not write out so many digits
    "matrix(row(1),row(2))": [r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix} 1 \\ 2.0 \end{bmatrix}"],
    "evelyn": [r"\text{Evelyn}", "evelyn."],
}


@pytest.mark.parametrize("spelling", CANONICAL)
def test_votes_for_one_answer_in_several_forms_are_votes_for_one_spelling(spelling: str) -> None:
    assert {canonical(form) for form in CANONICAL[spelling]} == {spelling}
