#!/usr/bin/env bash
# The demo, from the built binary to the last line: accuracy before, training, accuracy after, a few answers.
#   examples/demo.sh BINARY [full]     full: all 4,000 training and 1,000 test rows
# Model and data come from examples/fetch-demo.py; to use your own, write a copy of examples/demo.yaml with your files and run
#   roundhouse train my.yaml
set -euo pipefail
cd "$(dirname "$0")/.."
roundhouse=$1
suffix="" name=demo
if [ "${2:-}" = full ]; then suffix="-full" name=demo-full; fi
demo=build/demo out=build/demo/out$suffix
config=(examples/demo.yaml)
test_rows=(--validation-file "$demo/test$suffix.jsonl" --json)
started=$SECONDS

rm -rf "$out" # what an earlier demo wrote
echo "accuracy before training, on $(wc -l <"$demo/test$suffix.jsonl") test rows..."
before=$("$roundhouse" eval "${config[@]}" "${test_rows[@]}")
echo "training on $(wc -l <"$demo/train$suffix.jsonl") rows..."
"$roundhouse" train "${config[@]}" --train-file "$demo/train$suffix.jsonl" --output-dir "$out"
echo "accuracy after training..."
after=$("$roundhouse" eval "${config[@]}" "${test_rows[@]}" --adapter-name-or-path "$out")

echo
echo "three test reviews and the trained model's answers:"
for row in 1 2 3; do
	prompt=$(sed -n "${row}p" "$demo/test$suffix.jsonl" | python3 -c 'import json, sys; sys.stdout.write(json.load(sys.stdin)["prompt"] + ".")')
	prompt=${prompt%.} # the shell would strip the newline at its end
	answer=$("$roundhouse" generate "${config[@]}" --adapter-name-or-path "$out" --max-new-tokens 8 --prompt "$prompt")
	echo "  $(sed -n "${row}p" "$demo/test$suffix.jsonl" | python3 -c 'import json, sys; print(json.load(sys.stdin)["prompt"].split("\n")[2][:90])')..."
	echo "    -> $answer"
done

python3 - "$before" "$after" examples/demo-reference.json "$name" $((SECONDS - started)) "$out" <<'PY'
import json, sys
before, after = json.loads(sys.argv[1]), json.loads(sys.argv[2])
reference = json.load(open(sys.argv[3]))[sys.argv[4]]
print()
print(f"always the commonest answer   {before['majority']:.4f}")
print(f"before training               {before['eval_accuracy']:.4f}")
print(f"tf-idf, logistic regression   {reference['tfidf_logistic_regression']:.4f}   (same rows; a committed figure)")
print(f"after training                {after['eval_accuracy']:.4f}")
print(f"from the built binary to here: {sys.argv[5]} seconds; the adapter is in {sys.argv[6]}")
PY
