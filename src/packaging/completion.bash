# Completion of roundhouse's verbs, keys and values for bash; zsh takes it behind `autoload -U bashcompinit && bashcompinit`.
# What there is to complete is read from `roundhouse --help` and `roundhouse VERB --help`, which are made of the table of keys.

# The entries of a verb's help, a line each: KEY TEXT. An entry's further lines begin in column 35.
_roundhouse_entries() {
	"$1" "$2" --help 2>/dev/null | awk '
		/^  (--)?[a-z][a-z0-9_]*([ ]|$)/ { if (entry) print entry; entry = $0; next }
		substr($0, 1, 34) ~ /^ +$/ { sub(/^ +/, " "); entry = entry $0; next }
		{ if (entry) print entry; entry = "" }
		END { if (entry) print entry }'
}

# The values that the text of an entry names.
_roundhouse_values() {
	sed -E 's/ \[[^]]*\]$//; /true or false$/ { s/.*/true false/; q }
		/one of [^;]*$/!d; s/.*one of ([^;]*)$/\1/; s/,/ /g'
}

_roundhouse() {
	local program=${COMP_WORDS[0]} verb=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} words
	COMPREPLY=()
	if [ "$COMP_CWORD" -eq 1 ]; then
		words=$("$program" --help 2>/dev/null | sed -nE 's/^  ([a-z]+) .*/\1/p')
		COMPREPLY=($(compgen -W "$words --help --version" -- "$word"))
		return
	fi
	if [[ $word == -* ]]; then
		words=$(_roundhouse_entries "$program" "$verb" | sed -E 's/^ +(--)?([a-z0-9_]+).*/--\2/')
		[[ $word != --* ]] || { word=${word#--} word=--${word//-/_}; } # keys may be written with either
		COMPREPLY=($(compgen -W "$words --json --help" -- "$word"))
		return
	fi
	if [[ $before == --* ]]; then
		before=${before#--}
		words=$(_roundhouse_entries "$program" "$verb" | sed -nE "s/^ +(--)?${before//-/_} +//p" | _roundhouse_values)
		COMPREPLY=($(compgen -W "$words" -- "$word"))
	fi
	# else the shell completes names of files, as `-o default` asks
}
complete -o default -F _roundhouse roundhouse
