/* What the program's HTML pages share: they need no other file, and follow the reader's light or dark. */
#ifndef RH_OBSERVE_HTML_H
#define RH_OBSERVE_HTML_H

#include "core/text.h"

/* Text of others, as it is to be seen: markup escaped, control characters shown as signs. */
int rh_html_escape(struct rh_text *out, const char *text, size_t bytes) RH_MUST;

/* The rules of a style sheet for the colours, the body, tables and cards. */
#define RH_HTML_STYLE                                                                                                                      \
	":root { color-scheme: light dark; --ink: #1b1f24; --soft: #57606a; --page: #ffffff; --card: #f6f8fa; --line: #d0d7de;\n"          \
	"  --trained: #c6f0cf; --special: #0550ae; --bad: #b35900; --s0: #0b62d6; --s1: #c2570c; --s2: #1a7f37; --s3: #8250df; }\n"        \
	"@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --soft: #9198a1; --page: #0d1117; --card: #161b22;\n"               \
	"  --line: #30363d; --trained: #1d5a30; --special: #79c0ff; --bad: #f0a050; --s0: #6cb0ff; --s1: #f0a050; --s2: #56d364;\n"        \
	"  --s3: #c297ff; } }\n"                                                                                                           \
	"body { margin: 2rem auto; max-width: 70rem; padding: 0 1rem; background: var(--page); color: var(--ink);\n"                       \
	"  font: 16px/1.5 system-ui, sans-serif; }\n"                                                                                      \
	"h1 { font-size: 1.4rem; } h2 { font-size: 1rem; margin: 0 0 .5rem; font-weight: 600; } .soft { color: var(--soft); }\n"           \
	"table { border-collapse: collapse; margin: 1rem 0; } td, th { text-align: left; padding: .25rem .9rem .25rem 0;\n"                \
	"  border-bottom: 1px solid var(--line); vertical-align: top; } td.n, th.n { text-align: right;\n"                                 \
	"  font-variant-numeric: tabular-nums; }\n"                                                                                        \
	".bad { color: var(--bad); font-weight: 600; }\n"                                                                                  \
	"section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 1rem; margin: 1rem 0; }\n"         \
	"pre { margin: 0; white-space: pre-wrap; overflow-wrap: anywhere; font: 14px/1.7 ui-monospace, monospace; }\n"                     \
	"details { margin-top: .75rem; } summary { cursor: pointer; color: var(--soft); }\n"

#endif
