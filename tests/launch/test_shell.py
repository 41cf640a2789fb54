"""The shell's evaluator: the words that bash itself hands over; what is not known has its name."""

from __future__ import annotations

import contextlib
import subprocess

import pytest

from gnnplace.errors import FormatError
from gnnplace.launch.shell import evaluate, find_line, find_names, plain

STUB = 'torchrun() { printf "%s\\n" "$@"; }\n'
SCRIPTS = [
    'A="--x 1 --y $((2 * 3 + 4 / 2))"\nA="$A --z"\ntorchrun $A',
    'A=(--x 1 \'b c\')\nA+=("${A[@]}" $((7 % 4)))\ntorchrun "${A[@]}" ${#A[@]} ${A[2]} ${A[@]:3}',
    'K=b\nif [ $K = a ]; then N=1\nelif [[ $K == b && -n "$K" ]]; then N=2; else exit 1; fi\n'
    "torchrun --n $N",
    'case "big" in "small") N=1 ;; b*|c) N=2 ;; *) exit 1 ;; esac\ntorchrun --n $N',
    "P=a/b/c.tar.gz\ntorchrun ${P##*/} ${P%.*} ${P%%.*} ${P#*/} ${P//a/x} ${P/b/y} ${P:2:3} ${#P}",
    "torchrun ${Q:-7} ${Q:+no} ${R:=5} $R ${Q-8}",
    'for m in 1 2 3; do S="$S $m"; done\ntorchrun $S',
    "for ((i=0; i<3; i++)); do X+=(--v $i); done\ntorchrun ${X[@]}",
    'f() { local n=$1; shift; OUT="--n $n $*"; }\nf 4 a b\ntorchrun $OUT',
    "CMD=\"torchrun --a 'b c' \\\n   --d\"\neval $CMD",
    "export N=3\nbash -c \"$(declare -f torchrun); torchrun --n $N \\$((N + 1)) '\\$N'\"",
    'read -r -d "" V <<EOF\n--a 1\n--b $((1 + 1))\nEOF\ntorchrun $V',
    "V=$(cat <<'EOF'\n--a $X\nEOF\n)\ntorchrun $V",
    "declare -A M=([a]=1 [b]=2)\ntorchrun ${M[b]} ${M[a]}",
    'A=1; [ $A -gt 0 ] && B=yes || B=no\n[ "$A" -eq 2 ] || C=c\ntorchrun $B $C',
    "X=$(dirname /a/b/c)\nY=$(basename $X.sh .sh)\ntorchrun $X $Y $(expr 3 \\* 4) $(seq 2 4)",
    "N=5\nwhile [ $N -gt 2 ]; do N=$((N - 1)); done\ntorchrun $N $(( N > 1 ? 10 : 20 ))",
    "A=x\n(A=y)\ntorchrun $A",
    "T=8\ntorchrun $(( ($T > 1) ? 1 : 0 )) $((2**5)) $((1 << 3)) $(( 7 / -2 ))",
    'NAME=A\nA=found\ntorchrun ${!NAME} ${A^^} "${A}"x',
]


@pytest.mark.parametrize("script", SCRIPTS)
def test_words_are_those_that_bash_hands_over(script):
    """Bash runs it with a function for torchrun that prints its arguments, in 5 ms."""
    done = subprocess.run(
        ["bash", "-c", STUB + script], capture_output=True, text=True, check=True
    )
    (command,) = [
        c
        for c in evaluate(script, "run.sh").commands
        if plain(c.words[0]) == "torchrun"
    ]
    assert [plain(word) for word in command.words[1:]] == done.stdout.splitlines()


def test_what_only_the_environment_has_keeps_its_name():
    run = evaluate("N=$1\nM=$(nvidia-smi -L | wc -l)\ntorchrun --a $TP --b $N --c $M $((TP * 2))",
                   "run.sh")  # fmt: skip
    words = run.commands[-1].words
    assert [find_names(word) for word in words[2::2]] == [("TP",), ("N",), ("M",)]
    assert find_names(words[7]) == ("TP",)
    filled = evaluate("N=$1\ntorchrun $N $TP", "run.sh", {"1": "4", "TP": "8"})
    assert [plain(word) for word in filled.commands[0].words] == ["torchrun", "4", "8"]


def test_a_value_that_is_given_counts_more_than_an_assignment():
    run = evaluate("TP=$3\nPP=2\ntorchrun $TP $PP", "run.sh", {"TP": "4", "PP": "1"})
    assert [plain(word) for word in run.commands[0].words] == ["torchrun", "4", "1"]


def test_an_unknown_condition_leaves_both_texts_and_a_branch_that_exits_is_not_taken():
    text = (
        'A="--x"\nif [ "$KIND" = big ]; then A="$A --y 2"; fi\n[ $# -lt 3 ] && exit 1\n'
        "torchrun $A"
    )
    word = evaluate(text, "run.sh").commands[0].words[-1]
    assert find_names(word) == ("KIND",)
    (unknown,) = [part.unknown for part in word if part.unknown is not None]
    assert [plain(option) for option in unknown.options] == [" --y 2", ""]


def test_a_variable_that_nothing_sets_is_empty_for_the_test_whether_it_is():
    run = evaluate(
        'if [ -z "$VP" ]; then A="--a"; else A="--b"; fi\ntorchrun $A', "run.sh"
    )
    assert plain(run.commands[0].words[1]) == "--a"
    assert run.notes == ("defaults of the script, where nothing is set: VP=(empty)",)


def test_the_head_of_slurm_sets_its_variables_and_lines_are_the_texts():
    text = (
        "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --gres=gpu:a100:8\n#SBATCH --ntasks-per-node 2\n"
        'A="--n $SLURM_NNODES \\\n  --g $SLURM_GPUS_ON_NODE"\ntorchrun $A --t $SLURM_NTASKS\n'
    )
    words = evaluate(text, "run.slurm").commands[0].words
    assert [plain(word) for word in words] == [
        "torchrun",
        "--n",
        "4",
        "--g",
        "8",
        "--t",
        "8",
    ]
    assert [find_line(word) for word in (words[1], words[3], words[5])] == [5, 6, 7]


def test_files_that_a_script_writes_and_sources_are_read(tmp_path):
    (tmp_path / "sizes.sh").write_text('SIZES="--layers $N"\n')
    path = tmp_path / "run.sh"
    text = (
        "N=3\nsource $(dirname $0)/sizes.sh\n. ./none.sh\ncat <<EOT > out.$N.json\n"
        '{"n": $N}\nEOT\ntorchrun $SIZES --f out.$N.json\n'
    )
    run = evaluate(text, str(path))
    assert [plain(w) for w in run.commands[-1].words[:3]] == [
        "torchrun",
        "--layers",
        "3",
    ]
    assert plain(run.files["out.3.json"]) == '{"n": 3}\n'
    assert run.unread == ("none.sh",)
    assert "sizes.sh: beside the script" in run.notes[0]


@pytest.mark.parametrize(
    "text",
    ["while true; do A=$A$A; done", "f() { f; }; f", "A=x\n" + "A=$A$A\n" * 60, "$(" * 300,
     "for ((;;)); do :; done", "[[ a =~ (a+)+$ ]]", "echo ${A[", "if then fi", 'eval "$A"' * 50],
)  # fmt: skip
def test_what_cannot_be_followed_ends_soon(text):
    with contextlib.suppress(FormatError):
        evaluate(text, "run.sh")
