"""Templates of our own for the whole syntax, the variables they see, and the conversations that published templates are rendered over."""

say = lambda role, content, **more: {"role": role, "content": content, **more}

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place.\nIn \"degrees\".",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "A town, e.g. Caf\u00e9ville"},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
                "days": {"type": "integer", "minimum": 1, "nullable": True},
                "more": {"type": "object", "properties": {"deep": {"type": "array", "items": {"type": "number"}}}, "required": ["deep"]},
            },
            "required": ["place"],
        },
        "return": {"type": "object", "description": "weather"},
    },
}
OTHER = {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {"type": "object", "properties": {}}}}


def call(name, arguments, id="abc123def"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


def conversations():
    """40: tools, thinking, empty content, Unicode, list content, several turns, odd orders of roles."""
    weather = call("get_weather", {"place": "Oslo", "days": 2, "more": {"deep": [1.5, -2e-7, 1e22]}, "flag": True, "none": None})
    texts = ["Hello", "", "  leading and trailing \n", "\u4f60\u597d \U0001f600 na\u00efve \u0645\u0631\u062d\u0628\u0627", "a\x00b\t\u2028\u00a0",
             "<|im_end|> {{ 7 * 7 }} {% if x %}", "'quoted' \"twice\" \\n \\ </s>", "one\r\ntwo\n\n\nthree"]
    result = [{"messages": [say("user", t), say("assistant", texts[(i * 3 + 1) % len(texts)])]} for i, t in enumerate(texts)]
    result += [{"messages": [say("system", t), say("user", "q"), say("assistant", "a")]} for t in ("Be brief.", " two\nlines ", "")]
    thoughts = ["<think>\nwhy\n</think>\n\nbecause", "<think></think>x", "why</think>because", "<think>never closed", "\n</think>\n"]
    result += [{"messages": [say("user", "q1"), say("assistant", t), say("user", " q2 "), say("assistant", thoughts[(i + 2) % 5])]}
               for i, t in enumerate(thoughts)]
    result += [{"messages": m} for m in (
        [say("user", "only a question")],
        [say("system", "only a system turn")],
        [say("assistant", "only an answer")],
        [say("user", "a"), say("user", "b")],
        [say("user", "a"), say("assistant", "b"), say("assistant", "c")],
        [say("user", "a"), say("system", "late"), say("assistant", "b")],
        [say("user", "q"), say("assistant", "p", reasoning_content="\nbecause\n")],
        [say("user", "q"), say("assistant", "p", thinking="older name"), say("user", "r"), say("assistant", "s", reasoning=None)],
        [say("user", "q"), say("assistant", None)],
        [say("user", [{"type": "text", "text": "part one"}, {"type": "text", "text": " part two"}]), say("assistant", [{"type": "text", "text": "a"}])],
        [say("user", [{"type": "image"}, {"type": "text", "text": "what is it"}]), say("assistant", "a cat")],
        [say("developer", "instructions"), say("user", "q"), say("assistant", "a")],
        [{"role": "user"}, say("assistant", "no content key before")],
        [say("stranger", "who"), say("assistant", "?")],
        [say("user", "x" * 3000 + "\u00df"), say("assistant", "line\n" * 400)],
    )]
    result += [{"messages": m, "tools": t} for m, t in (
        ([say("user", "q"), say("assistant", "a")], [TOOL]),
        ([say("system", "s"), say("user", "q"), say("assistant", "a")], [TOOL, OTHER]),
        ([say("user", "q"), say("assistant", "", tool_calls=[weather]), say("tool", "5", name="get_weather", tool_call_id="abc123def"),
          say("assistant", "five")], [TOOL]),
        ([say("user", "q"), say("assistant", None, tool_calls=[weather, call("noop", {}, "xyz123def")]), say("tool", "5", tool_call_id="abc123def"),
          say("tool", "{\"a\": 1}", tool_call_id="xyz123def"), say("assistant", "done"), say("user", "more")], [TOOL, OTHER]),
        ([say("user", "q"), say("assistant", "<think>t</think>calling", tool_calls=[call("noop", "{\"as\": \"text\"}")]),
          say("tool", "r", tool_call_id="abc123def")], [OTHER]),
        ([say("user", "q"), say("assistant", "c", tool_calls=[{"name": "noop", "arguments": {"flat": "\u00e9"}}]), say("tool", {"k": [1, 2]}),
          say("assistant", "d", reasoning_content="r")], [OTHER]),
        ([say("user", "q"), say("assistant", "a")], []),
    )]
    result += [
        {"messages": [say("user", "q"), say("assistant", "a")], "enable_thinking": False},
        {"messages": [say("user", "q"), say("assistant", "a", reasoning_content="r"), say("user", "q"), say("assistant", "b")],
         "enable_thinking": True, "documents": [{"title": "T", "text": "body"}]},
    ]
    assert len(result) == 40
    return result


VARIABLES = [
    {
        "text": "Hello World", "blank": "", "spaces": "  \t x \n", "uni": "na\u00efve \u00dfTRASSE \u01c6 \u039f\u0394\u039f\u03a3 \u0130 \ufb01 \U0001f600", "html": "<a href=\"x\">'&'</a>",
        "lines": "one\ntwo\r\nthree\n\nfive", "csv": "a,b,,c", "number": 42, "negative": -7, "real": 2.5, "tiny": 1e-7, "huge": 1e22, "third": 0.1,
        "yes": True, "no": False, "nothing": None, "wide": 12345678901234567890, "wider": -123456789012345678901234567890, "nul": "a\0 b\0", "list": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "empty": [], "mixed": [1, "a", None, 2.0, True],
        "dict": {"b": 1, "a": 2, "C": 3}, "nested": {"a": {"b": [10, {"c": "deep"}]}, "items": "shadowed", "get": 5},
        "people": [{"name": "Ann", "age": 31, "town": {"name": "Oslo"}}, {"name": "bob", "age": 25, "town": {"name": "Bern"}}, {"name": "Cyd", "age": 25}],
        "tools": [TOOL, OTHER], "messages": [say("system", "s"), say("user", "q"), say("assistant", "a")], "add_generation_prompt": True,
        "bos_token": "<s>", "eos_token": "</s>",
    },
]

OWN = []


def own(name, *texts, which=(0,)):
    for i, text in enumerate(texts):
        OWN.append((name if len(texts) == 1 else f"{name} {i + 1}", text, which))


own("data", "", "plain\n", "plain\n\n", "a\r\nb\rc\n", "{{ text }}\n{{ text }}\n\n", "{ { } } {x} %} }} #}", "\u00e9 {{ uni }} \u00e9\n")
own("trim_blocks", "a\n{% if yes %}\nb\n{% endif %}\nc\n", "a\n  {% if yes %}  \n  b\n  {% endif %}\nc", "{% if yes %}\n\nx{% endif %}\n\ny", "  {{ text }}\n  {# c #}\n  z",
    "\t {% if yes %}x{% endif %}", "a {% if yes %} b {% endif %} c", "x\n   {%+ if yes %}y{%+ endif +%}\nz", "{% if yes +%}\ny{% endif %}", "{{ text }}\n{% set x = 1 %}\n{{ x }}")
own("minus", "a  {%- if yes -%}  b  {%- endif -%}  c", "a \n\n {{- text -}} \n\n b", "a \u2003{#- c -#}\u2003 b", "{%- for i in list -%} {{ i }} {%- endfor -%}", "x \n {#+ c +#} \n y")
own("raw", "{% raw %}{{ x }} {% if %}{% endraw %}", "a\n  {% raw %}\n  {{ x }}\n  {% endraw %}\nb", "a {%- raw -%}  {{ x }}  {%- endraw -%} b", "{%raw%}{#{%endraw%}")
own("comment", "a{# {{ x }} {% if %} #}b", "{# a\nb #}\nc", "a\n{#- x -#}\nb", "x {# one #} {# two #}\ny")
own("literals", "{{ 1 }}{{ 1_000 }}{{ 0 }}{{ 1.5 }}{{ 1e3 }}{{ 1.5e-7 }}{{ 2.0 }}{{ 123456789012345678 }}", "{{ 'a' \"b\" 'c' }}", r"{{ 'a\nb\t\\\'\"\x41\u00e9\U0001f600\101\z' }}",
    "{{ true }}{{ True }}{{ false }}{{ none }}{{ None }}", "{{ [1, 'a', none, [2.0], (1,), (), (1, 2), {'k': true, 2: 'v'}] }}", "{{ {} }}{{ [] }}{{ () }}{{ {'a': 1,} }}{{ [1,] }}",
    "{{ 'it\\'s' }}{{ ['it\\'s', 'say \"x\"', 'both \\' \"', 'tab\\t\\n\\r\\x00\\x7f\\u00ad\\u200b\\ue000'] }}", "{{ 1, 2 }}", "{{ (1) }}{{ ('a') }}")
own("numbers", "{{ real }} {{ tiny }} {{ huge }} {{ third }} {{ 1e15 }} {{ 1e16 }} {{ 123456.789 }} {{ 0.0001 }} {{ 0.00001 }} {{ -0.0 }} {{ 1e100 }}",
    "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 % -3 }} {{ 7 / 2 }} {{ 6 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 2.5 // 1 }} {{ -2.5 % 1 }} {{ 2 ** 0.5 }}",
    "{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ -2 ** 2 }} {{ - -2 }} {{ +2 }} {{ 2 ** 3 ** 2 }} {{ 10 - 3 - 2 }} {{ 100 / 10 / 2 }}", "{{ 1 + true }} {{ true + true }} {{ 1.0 + 1 }} {{ 3 * 1.5 }}",
    "{{ 1 / 0 }}", "{{ 1 // 0 }}", "{{ 1 % 0 }}", "{{ 1.0 / 0 }}", "{{ 1.0 // 0 }}", "{{ 1.0 % 0 }}", "{{ 0 ** -1 }}")
own("operators", "{{ 'a' + 'b' }}{{ 'a' ~ 1 ~ none ~ true ~ 1.5 ~ [1] ~ undefined_name }}{{ [1] + [2] }}{{ (1,) + (2,) }}", "{{ 'ab' * 3 }}{{ 3 * 'x' }}{{ [1, 2] * 2 }}{{ 'a' * -1 }}|{{ 'a' * 0 }}",
    "{{ 1 < 2 }}{{ 1 < 2 < 3 }}{{ 1 < 3 < 2 }}{{ 2 >= 2 }}{{ 'a' < 'b' }}{{ 'a' <= 'a' }}{{ [1, 2] < [1, 3] }}{{ 1 == 1.0 }}{{ true == 1 }}{{ 'a' != 'b' }}{{ none == none }}",
    "{{ 1 in list }}{{ 9 not in list }}{{ 'ell' in text }}{{ 'a' in dict }}{{ 'z' in dict }}{{ '' in 'x' }}{{ 1 in (1, 2) }}{{ 'x' in missing }}", "{{ not yes }}{{ not not yes }}{{ not 1 == 2 }}",
    "{{ yes and 5 }}{{ no and 5 }}{{ no or 'x' }}{{ '' or [] or 'last' }}{{ 1 and 2 or 3 }}{{ no or no }}", "{{ 'a' if yes else 'b' }}{{ 'a' if no else 'b' }}{{ 'a' if no }}|{{ 1 if no else 2 if no else 3 }}",
    "{{ 1 if yes else 2 }}{{ ('x' if no) is defined }}", "{{ text if text is string else 'other' }}", "{{ list == [3, 1, 2] }}{{ dict == {'a': 2, 'b': 1, 'C': 3} }}{{ [1] == (1,) }}{{ missing == also_missing }}",
    "{{ number is odd and not number is even or yes }}", "{{ 1 ~ 2 + 3 }}", "{{ 5 - 2 ~ 1 }}", "{{ 'a' + 'b' if yes else 'c' }}")
own("type errors", "{{ 'a' + 1 }}", "{{ 1 + 'a' }}", "{{ [1] + 'a' }}", "{{ (1,) + [] }}", "{{ none + 1 }}", "{{ 'a' - 1 }}", "{{ 'a' * 1.5 }}", "{{ -'a' }}", "{{ +[] }}", "{{ 'x' in 5 }}", "{{ 5 in 'x' }}",
    "{{ [] in {} }}", "{{ 'a' < 1 }}", "{{ none > 1 }}", "{{ {[]: 1} }}", "{{ 5() }}", "{{ 'a'() }}", "{{ dict.items(1) }}", "{{ 5|length }}", "{{ none|length }}", "{% for x in 5 %}{% endfor %}", "{% for x in none %}{% endfor %}",
    "{% for a, b in [[1]] %}{% endfor %}", "{% for a, b in [[1, 2, 3]] %}{% endfor %}", "{% for a, b in [5] %}{% endfor %}", "{% set a, b = 1, 2, 3 %}", "{{ range('a') }}", "{{ range(1, 2, 0) }}", "{{ range(200000) }}",
    "{{ {} + 1 }}", "{{ text.split('') }}", "{{ text.split(1) }}", "{{ text.strip(1) }}", "{{ text.startswith(1) }}", "{{ text.replace(1, 2) }}", "{{ text.index('zzz') }}", "{{ list.index(9) }}", "{{ ' '.join([1]) }}", "{{ ' '.join(5) }}", "{{ text.upper(1) }}",
    "{{ text.find(1) }}", "{{ dict.get() }}", "{{ text.center('b') }}", "{{ none|join }}", "{{ 5|list }}", "{{ 'a'|abs }}", "{{ ['a']|sum }}", "{{ 5|items|list }}", "{{ 'x'|dictsort }}", "{{ 'a'|round }}", "{{ text.removeprefix(1) }}",
    "{{ range(a=1) }}", "{{ range(1, a=1) }}", "{% for x in [1] recursive %}{{ loop(x=[]) }}{% endfor %}", "{% for x in [1] recursive %}{{ loop(iterable=[]) }}{% endfor %}|")
own("undefined", "[{{ missing }}]", "{{ missing.x }}", "{{ missing['x'] }}", "{{ missing() }}", "{{ missing + 1 }}", "{{ 'a' + missing }}", "{{ 1 + missing }}", "{{ missing < 1 }}", "{{ -missing }}", "[{{ dict.zzz }}]", "{{ dict.zzz.y }}",
    "{{ dict['zzz'].y }}", "{{ list[9] }}|", "{{ list[9].x }}", "{{ text.zzz.y }}", "{{ none.x }}|", "{{ none.x.y }}", "{{ number.x.y }}", "{{ nested.a.b[1].c }}{{ nested['a']['b'][0] }}", "{{ nested.items }}|{{ nested['items'] }}|{{ nested.get }}" .replace("{{ nested.items }}|", "").replace("|{{ nested.get }}", ""),
    "{% for x in missing %}a{% else %}none{% endfor %}", "{{ missing|default('d') }}{{ none|default('d') }}{{ none|default('d', true) }}{{ ''|default('e', boolean=true) }}{{ dict.zzz|default }}|{{ dict.zzz|d('x') }}",
    "{{ missing is defined }}{{ missing is undefined }}{{ dict.a is defined }}{{ dict.zzz is defined }}{{ missing is none }}{{ missing|length }}{{ missing|string }}|{{ missing|upper }}|{{ missing|list }}",
    "{{ missing.x is defined }}", "{{ missing == missing }}{{ missing == none }}{{ not missing }}", "{{ [missing, 1] }}", "{{ missing|tojson }}", "{{ missing|int }}", "{{ missing|join('x') }}|{{ missing|first }}|{{ missing|trim }}|", "{{ raise_exception }}".replace("raise_exception", "missing is callable"))
own("attributes", "{{ text.__class__ }}", "{{ text.__class__.x }}", "{{ text['__class__'] }}|", "{{ list._x }}|{{ list._x.y }}", "{{ messages.append(1) }}", "{{ dict.update({}) }}", "{{ dict.pop('a') }}", "{{ list.append }}|", "{{ dict.clear is defined }}", "{{ ''.__class__.__mro__ }}",
    "{{ dict._private }}|", "{{ {'_a': 1}._a }}{{ {'_a': 1}['_a'] }}", "{{ (1, 2).0 }}{{ list.1 }}", "{{ range.__globals__ }}")
own("slices", "{{ list[0] }}{{ list[-1] }}{{ list[1:] }}{{ list[:-1] }}{{ list[::-1] }}{{ list[5:] }}{{ list[-99:2] }}{{ list[::2] }}", "{{ text[0] }}{{ text[-1] }}{{ text[1:4] }}{{ text[::-1] }}{{ text[99:] }}|{{ uni[2:8] }}{{ uni[-1] }}{{ uni[::-2] }}",
    "{{ (1, 2, 3)[1:] }}{{ range(5)[1:3] | list }}{{ messages[1:][0].role }}", "{{ list['a':] }}", "{{ list[::0] }}", "{{ dict[1:] }}|", "{{ nothing[1:] }}", "{{ dict.items()[1:] }}", "{{ missing[1:] }}", "{{ text[none:3] }}{{ list[true] }}", "{{ list[1.5] }}|", "{{ uni[1] }}{{ uni[6] }}")
own("for", "{% for i in list %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.depth }}{{ loop.depth0 }};{% endfor %}",
    "{% for k, v in dict.items() %}{{ k }}={{ v }};{% endfor %}{% for k in dict %}{{ k }}{% endfor %}{% for c in 'h\u00e9\U0001f600' %}<{{ c }}>{% endfor %}", "{% for i in list if i > 1 %}{{ i }}{{ loop.length }}{{ loop.index }}{% else %}none{% endfor %}",
    "{% for i in [] %}x{% else %}empty{% endfor %}", "{% for i in list %}{{ loop.previtem }}-{{ loop.nextitem }};{% endfor %}", "{% for i in list %}{{ loop.cycle('a', 'b') }}{{ loop.changed(i // 2) }}{% endfor %}",
    "{% for i in range(10) %}{% if i == 3 %}{% continue %}{% endif %}{% if i > 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "{% set x = 1 %}{% for i in list %}{{ x }}{% set x = i %}{{ x }}{% endfor %}{{ x }}", "{% for i in list %}{% for k in list %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
    "{% for item in [{'n': 1, 'c': [{'n': 2, 'c': []}, {'n': 3, 'c': [{'n': 4, 'c': []}]}]}] recursive %}{{ item.n }}:{{ loop.depth }}[{{ loop(item.c) }}]{% endfor %}", "{% for i in list %}{{ loop(i) }}{% endfor %}", "{% for i in 1, 2, 3 %}{{ i }}{% endfor %}",
    "{% for (a, b) in [(1, 2), [3, 4]] %}{{ a }}{{ b }}{% endfor %}", "{% for i in list|sort %}{{ i }},{% endfor %}{{ i }}", "{% for a in [1] %}{% set ns = namespace(x=a) %}{{ ns.x }}{% endfor %}{{ ns }}", "{% for i in range(3, 0, -1) %}{{ i }}{% endfor %}{{ range(3) }}{{ range(1, 7, 2) }}{{ range(1,3)|list }}",
    "{{ loop }}", "{% for m in messages %}{{ loop.index0 }}{{ m['role'] }}{{ m.content }}{% if not loop.last %}\n{% endif %}{% endfor %}", "{% for i in list %}{{ loop.nope }}{% endfor %}|", "{% for i in list %}{{ loop.first and loop.length > 2 }}{% endfor %}")
own("if", "{% if no %}a{% elif nothing %}b{% elif list %}c{% else %}d{% endif %}", "{% if no %}a{% else %}d{% endif %}", "{% if text is string and (number > 40 or no) %}y{% endif %}", "{% if yes %}{% set z = 5 %}{% endif %}{{ z }}", "{% if no %}{% set z = 5 %}{% endif %}[{{ z }}]", "{% if empty %}a{% endif %}{% if 0 %}b{% endif %}{% if '' %}c{% endif %}{% if {} %}d{% endif %}{% if 0.0 %}e{% endif %}{% if ' ' %}f{% endif %}",
    "{% if yes: %}x{% endif %}")
own("set", "{% set a = 1 %}{% set b, c = 2, 3 %}{% set (d, e) = [4, 5] %}{{ a }}{{ b }}{{ c }}{{ d }}{{ e }}", "{% set x %}  block {{ text }}\n{% endset %}[{{ x }}]", "{% set x | trim | upper %}  block {% endset %}[{{ x }}]", "{% set t = 1, 2 %}{{ t }}", "{% set ns = namespace(a=1, b='x') %}{% set ns.a = ns.a + 1 %}{% for i in list %}{% set ns.b = ns.b ~ i %}{% endfor %}{{ ns.a }}{{ ns.b }}{{ ns }}",
    "{% set x = {} %}{% set x.a = 1 %}", "{% set ns = namespace() %}{{ ns.zzz }}|{{ ns.zzz.y }}", "{% set ns = namespace(_x=1) %}", "{% set ns = namespace() %}{% set ns._x = 1 %}", "{% set ns = namespace({'a': 1}, b=2) %}{{ ns.a }}{{ ns['b'] }}", "{% set messages = messages[1:] %}{{ messages|length }}",
    "{% set x = 1 %}{% set x = x + 1 %}{{ x }}", "{% set x %}{% set y = 1 %}{{ y }}{% endset %}{{ x }}[{{ y }}]", "{% set ns.x = 1 %}")
own("macro", "{% macro m(a, b=2, c=a) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ m(1) }}|{{ m(1, 3) }}|{{ m(b=1, a=0) }}|{{ m(1, c=9) }}", "{% macro m(a) %}[{{ a }}]{{ a is defined }}{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a.x }}{% endmacro %}{{ m() }}", "{% macro m() %}x{% endmacro %}{{ m(1) }}", "{% macro m() %}x{% endmacro %}{{ m(z=1) }}",
    "{% macro m() %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ m(1, 2, k=3) }}", "{% macro m(a) %}{{ a }}{{ varargs|length }}{% endmacro %}{{ m(1, 2, 3) }}", "{% macro fact(n) %}{% if n < 2 %}1{% else %}{{ n * (fact(n - 1)|int) }}{% endif %}{% endmacro %}{{ fact(10) }}", "{% set g = 1 %}{% macro m() %}{{ g }}{% set g = 5 %}{{ g }}{% endmacro %}{{ m() }}{{ g }}",
    "{% macro m() %}{{ later }}{% endmacro %}{% set later = 'now' %}{{ m() }}", "{% macro box(t) %}<{{ t }}>{{ caller() }}</{{ t }}>{% endmacro %}{% call box('b') %}in {{ text }}{% endcall %}", "{% macro each(l) %}{% for i in l %}{{ caller(i, loop.index) }}{% endfor %}{% endmacro %}{% call(x, n) each(list) %}{{ n }}:{{ x }};{% endcall %}",
    "{% macro m() %}{{ caller() }}{% endmacro %}{{ m() }}", "{{ m() }}{% macro m() %}x{% endmacro %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(*[1]) }}{{ m(**{'a': 2}) }}", "{% macro m(x) %}{%- if x is mapping -%}{%- for k, v in x|dictsort -%}{{ k }}:{ {{- m(v) -}} },{%- endfor -%}{%- else -%}{{ x }}{%- endif -%}{% endmacro %}{{ m(nested) }}",
    "{% macro m() %}x{% endmacro %}{{ m }}{{ m is callable }}{{ m.name }}", "{% for i in list %}{% macro m() %}{{ i }}{% endmacro %}{{ m() }}{% endfor %}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}", "{% macro m() %}  {{ text }}\n{% endmacro %}[{{ m()|trim }}]{{ m()|length }}")
own("with", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}[{{ a }}]", "{% set a = 1 %}{% with %}{% set a = 2 %}{{ a }}{% endwith %}{{ a }}", "{% set a = 5 %}{% with a = 1, b = a %}{{ b }}{% endwith %}")
own("filter block", "{% filter upper %}abc {{ text }}{% endfilter %}", "{% filter trim|replace('a', 'b') %}  aXa  {% endfilter %}", "{% filter indent(2) %}a\nb{% endfilter %}")
own("generation", "{% for m in messages %}{{ m.role }}:{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<end>{% endgeneration %}{% else %}{{ m.content }}{% endif %}\n{% endfor %}", "\u00e9{% generation %}\u00e9{{ uni }}{% endgeneration %}|{%- generation -%} x {%- endgeneration -%}|{% generation %}{% endgeneration %}",
    "{% generation %}{% set x = 1 %}{{ x }}{% endgeneration %}[{{ x }}]")
own("string methods", "[{{ spaces.strip() }}][{{ spaces.lstrip() }}][{{ spaces.rstrip() }}][{{ 'xxaxx'.strip('x') }}][{{ 'abcba'.lstrip('ab') }}][{{ '\u2003a\u00a0'.strip() }}][{{ '\\x1ca'.strip() }}]", "{{ csv.split(',') }}{{ csv.split(',', 1) }}{{ csv.rsplit(',', 1) }}{{ ' a  b c '.split() }}{{ ' a  b c '.split(none, 1) }}{{ ' a  b c '.rsplit(none, 1) }}{{ ''.split() }}{{ ''.split(',') }}{{ 'a--b'.split('--') }}{{ csv.split(sep=',', maxsplit=2) }}",
    "{{ lines.splitlines() }}{{ lines.splitlines(true) }}{{ 'a\\x0bb\\x0cc\\x1cd\\u2028e\\x85f\\r\\n'.splitlines() }}", "{{ text.startswith('He') }}{{ text.endswith('ld') }}{{ text.startswith(('x', 'H')) }}{{ text.startswith('l', 2) }}{{ text.endswith('o', 0, 5) }}", "{{ text.replace('l', 'L') }}{{ text.replace('l', '', 1) }}{{ 'abc'.replace('', '-') }}{{ 'ab'.replace('', '-', 2) }}",
    "{{ text.find('o') }}{{ text.rfind('o') }}{{ text.find('z') }}{{ text.index('W') }}{{ text.find('o', 5) }}{{ text.count('l') }}{{ uni.find('\U0001f600') }}{{ 'aaa'.count('aa') }}{{ 'abc'.count('') }}", "{{ uni.upper() }}|{{ uni.lower() }}|{{ uni.title() }}|{{ uni.capitalize() }}|{{ uni.swapcase() }}|{{ 'they\\'re bill\\'s'.title() }}",
    "{{ 'a'.isalpha() }}{{ '1'.isdigit() }}{{ 'a1'.isalnum() }}{{ ' \\t'.isspace() }}{{ ''.isalpha() }}{{ 'AB'.isupper() }}{{ 'ab'.islower() }}{{ 'Ab Cd'.istitle() }}{{ '\u00b2'.isdigit() }}{{ '\u0663'.isdecimal() }}{{ '\u00e9'.isascii() }}{{ 'a_1'.isidentifier() }}{{ 'aB1'.isupper() }}", "{{ 'a'.ljust(3) }}|{{ 'a'.rjust(3, '-') }}|{{ 'a'.center(4, '*') }}|{{ 'ab'.center(5) }}|{{ '-5'.zfill(4) }}|{{ 'a\\tb'.expandtabs(4) }}",
    "{{ 'a-b-c'.partition('-') }}{{ 'a-b-c'.rpartition('-') }}{{ 'abc'.partition('-') }}{{ 'prefix-x'.removeprefix('prefix-') }}{{ 'x.py'.removesuffix('.py') }}", "{{ '{} {1} {a} {b[k]} {{}}'.format('x', 'y', a=1, b={'k': 2}) }}".replace("{} {1}", "{0} {1}"), "{{ '{}-{}'.format(1, [2]) }}{{ '{:>5}|{:<5}|{:^5}|{:*^7}'.format('a', 'b', 'c', 'd') }}{{ '{:05d} {:.2f} {:,} {:x} {:+d} {:e} {:.1%}'.format(42, 3.14159, 1234567, 255, 3, 12345.678, 0.256) }}",
    "{{ '{}'.format() }}", "{{ '{a}'.format() }}", "{{ '{:d}'.format('a') }}", "{{ '{!r}'.format('q') }}{{ '{:.3}'.format('abcdef') }}{{ '{:8.3f}|'.format(2.5) }}", "{{ ','.join(['a', 'b']) }}{{ ','.join('abc') }}{{ ''.join([]) }}", "{{ 'a,b'.split(',')[0] }}{{ text.split('o')[-1].strip() }}", "{{ dict.keys() }}{{ dict.values() }}{{ dict.items() }}{{ dict.get('a') }}{{ dict.get('z') }}{{ dict.get('z', 'd') }}{{ dict.keys()|list }}{{ dict.copy() }}{{ list.count(1) }}{{ list.index(2) }}")
own("percent", "{{ '%s and %d' % ('a', 5) }}{{ '%s' % 'x' }}{{ '%5s|%-5s|%05d|%.2f|%x|%%' % ('a', 'b', 42, 2.345, 255) }}", "{{ '%(a)s %(b)d' % {'a': 1, 'b': 2} }}", "{{ '%s %s' % 'a' }}", "{{ '%s' % ('a', 'b') }}", "{{ '%d' % 'a' }}", "{{ '%q' % 1 }}", "{{ '%s|%r' % ([1], 'a') }}{{ '%e %g %G %i %o %+d' % (12345.6, 0.00001, 1e20, 3, 8, 5) }}", "{{ '%s %s'|format('a', 1) }}{{ '%(k)s'|format(k='v') }}", "{{ '%.3s' % 'abcdef' }}{{ '%c' % 'a' }}".replace("{{ '%c' % 'a' }}", ""))
own("filters", "{{ spaces|trim }}|{{ 'xax'|trim('x') }}|{{ 5|trim }}|{{ none|trim }}", "{{ text|upper }}{{ text|lower }}{{ 'aBC dE'|capitalize }}{{ 'hello wORLD-foo (bar) it\\'s'|title }}", "{{ text|length }}{{ list|count }}{{ dict|length }}{{ uni|length }}", "{{ text|replace('l', 'L') }}{{ 123|replace(2, 'x') }}{{ text|replace('l', 'L', 1) }}", "{{ list|join(', ') }}{{ people|join('-', attribute='name') }}{{ mixed|join('|') }}{{ 'abc'|join('.') }}{{ dict|join }}",
    "{{ list|first }}{{ list|last }}{{ text|first }}{{ text|last }}{{ []|first }}|{{ dict|first }}", "{{ words|sort }}{{ words|sort(case_sensitive=true) }}{{ list|sort(reverse=true) }}{{ people|sort(attribute='age')|map(attribute='name')|list }}{{ people|sort(attribute='age,name', reverse=true)|map(attribute='name')|list }}", "{{ [1, 'a']|sort }}", "{{ words|unique|list }}{{ [1, 1.0, 2, true]|unique|list }}{{ people|unique(attribute='age')|map(attribute='name')|list }}",
    "{{ list|min }}{{ list|max }}{{ words|min }}{{ words|max }}{{ []|min }}|{{ people|max(attribute='age')|tojson }}", "{{ list|sum }}{{ people|sum(attribute='age') }}{{ list|sum(start=10) }}", "{{ list|reverse|list }}{{ text|reverse }}{{ dict|list }}{{ 'ab'|list }}{{ (1, 2)|list }}", "{{ people|map(attribute='town.name')|list }}{{ people|map(attribute='town.name', default='?')|list }}{{ words|map('upper')|list }}{{ words|map('replace', 'p', 'P')|join(' ') }}{{ []|map('upper')|list }}",
    "{{ mixed|select|list }}{{ mixed|reject|list }}{{ mixed|select('string')|list }}{{ list|select('gt', 1)|list }}{{ list|reject('equalto', 1)|list }}{{ list|select('in', [1, 2])|list }}", "{{ people|selectattr('town')|map(attribute='name')|list }}{{ people|selectattr('age', 'equalto', 25)|map(attribute='name')|join(',') }}{{ people|rejectattr('town', 'defined')|map(attribute='name')|list }}{{ messages|selectattr('role', '==', 'user')|list|length }}", "{{ people|selectattr|list }}|", "{{ people|map|list }}", "{{ people|map('nope')|list }}", "{{ list|select('nope')|list }}",
    "{{ list|batch(2)|list }}{{ list|batch(2, 'x')|list }}{{ list|slice(2)|list }}{{ range(7)|slice(3, 'f')|list }}", "{% for g in people|groupby('age') %}{{ g.grouper }}:{{ g.list|map(attribute='name')|join(',') }};{% endfor %}{% for k, l in words|groupby(0) %}{{ k }}{{ l }}{% endfor %}", "{{ dict|items|list }}{{ missing|items|list }}{{ dict|dictsort }}{{ dict|dictsort(true) }}{{ dict|dictsort(false, 'value') }}{{ dict|dictsort(reverse=true) }}", "{{ dict|dictsort(by='x') }}",
    "{{ '42'|int }}{{ '42.7'|int }}{{ 'x'|int }}{{ 'x'|int(5) }}{{ 3.9|int }}{{ -3.9|int }}{{ true|int }}{{ none|int }}{{ ' 7 '|int }}{{ '0x1f'|int(0, 16) }}{{ '1_000'|int }}{{ '1e3'|int }}", "{{ '2.5'|float }}{{ 'x'|float }}{{ 3|float }}{{ 'x'|float(1.5) }}{{ '1e400'|float }}{{ 'nan'|float }}{{ '-inf'|float }}", "{{ 2.5|round }}{{ 3.5|round }}{{ 2.675|round(2) }}{{ 42.55|round(1, 'floor') }}{{ 42.51|round(1, 'ceil') }}{{ 5|round }}{{ -2.5|round }}", "{{ -3|abs }}{{ 2.5|abs }}{{ -2.5|abs }}",
    "{{ 'a\nb\n\nc'|indent }}|{{ 'a\nb'|indent(2, true) }}|{{ 'a\n\nb'|indent(2, blank=true) }}|{{ 'a\nb'|indent('> ') }}|{{ ''|indent }}", "{{ 'foo bar baz qux'|truncate(9) }}|{{ 'foo bar baz qux'|truncate(9, true) }}|{{ 'foo bar baz qux'|truncate(11) }}|{{ 'foo bar baz qux'|truncate(11, false, '...', 0) }}", "{{ 'a b  c_d e-f'|wordcount }}{{ 'ab'|center(6) }}|", "{{ html|e }}{{ html|escape|escape }}{{ html|safe }}{{ html|forceescape }}{{ (html|safe) ~ html }}", "{{ 'a<' + ('<b>'|safe) }}{{ ('<b>'|safe) + 'c<' }}{{ ('<b>'|safe)|upper }}{{ ('<b>'|safe).replace('b', '<') }}{{ ['<b>'|safe] }}{{ ('x'|safe) is escaped }}",
    "{{ dict|attr('items') is callable }}{{ dict|attr('a') is defined }}{{ text|attr('upper')() }}", "{{ 5|string + 'x' }}{{ none|string }}{{ [1]|string }}", "{{ list|map('string')|join('+') }}{{ list|map('float')|sum }}", "{{ mixed|tojson }}{{ 'x'|default }}{{ list|list|tojson }}", "{{ range(3)|map('string') is string }}{{ list|map('string')|length }}", "{{ dict|map('upper')|list }}", "{{ text|trim|lower|replace('o', '0')|length }}", "{{ (list|sort)[0] }}{{ (text|upper).lower() }}{{ list|sort|first }}")
own("tojson", "{{ tools|tojson }}", "{{ tools|tojson(indent=4) }}", "{{ tools[0]|tojson(indent=2, sort_keys=true) }}{{ mixed|tojson(separators=(',', ':')) }}{{ dict|tojson(sort_keys=true) }}", "{{ uni|tojson }}{{ uni|tojson(ensure_ascii=true) }}{{ 'q\" \\\\ \\n\\t\\x00\\x1f\\x7f/\\u2028<&>'|tojson }}", "{{ [1.0, 1e-7, 1e22, 0.1, -0.0, true, none, 'x']|tojson }}{{ {1: 2, none: 3, true: 4, 1.5: 5}|tojson }}{{ (1, 2)|tojson }}{{ []|tojson }}{{ {}|tojson }}{{ [[]]|tojson(indent=2) }}{{ [1, {'a': []}]|tojson(indent='--') }}", "{{ dict.items()|tojson }}", "{{ range(2)|tojson }}", "{{ namespace(a=1)|tojson }}", "{{ {(1, 2): 3}|tojson }}", "{{ 5|tojson }}{{ 'a'|tojson|safe }}")
own("tests", "{{ text is string }}{{ number is number }}{{ number is integer }}{{ real is float }}{{ yes is boolean }}{{ yes is true }}{{ no is false }}{{ 1 is true }}{{ nothing is none }}{{ dict is mapping }}{{ list is sequence }}{{ text is sequence }}{{ dict is sequence }}{{ 5 is sequence }}{{ list is iterable }}{{ 5 is iterable }}{{ range is callable }}{{ text is callable }}{{ dict.items() is sequence }}{{ dict.items() is iterable }}{{ missing is sequence }}{{ missing is iterable }}{{ missing is string }}{{ missing is mapping }}",
    "{{ 3 is odd }}{{ 4 is even }}{{ 9 is divisibleby 3 }}{{ 9 is divisibleby(2) }}{{ 1 is eq 1 }}{{ 1 is ne 2 }}{{ 1 is lt 2 }}{{ 2 is ge(2) }}{{ 'a' is in ['a'] }}{{ 'a' is not in ['a'] }}{{ none is sameas none }}{{ 'abc' is lower }}{{ 'ABC' is upper }}{{ 'upper' is filter }}{{ 'nope' is filter }}{{ 'odd' is test }}", "{{ 1 is not string }}{{ not 1 is string }}{{ text is not none and text is string }}{{ 5 is greaterthan 4 }}{{ 5 is equalto 5 }}", "{{ true is number }}{{ true is integer }}{{ 1.0 is integer }}{{ (1, 2) is sequence }}{{ 'a' is defined }}{{ namespace() is mapping }}{{ list|map('string') is iterable }}{{ list|map('string') is sequence }}", "{{ 'a' is odd }}", "{{ none is odd }}", "{{ text is string == true }}", "{% if number is divisibleby 2 and text is string %}y{% endif %}")
own("globals", "{{ range(3)|list }}{{ dict(a=1) if no else 1 }}", "{{ namespace(a=1).a }}", "{% set c = cycler('a', 'b') %}{{ c.next() }}{{ c.next() }}{{ c.next() }}{{ c.current }}{{ c.reset() }}{{ c.current }}", "{% set j = joiner('; ') %}{{ j() }}a{{ j() }}b{{ j() }}c", "{{ raise_exception('my message: ' ~ number) }}", "{{ raise_exception('quoted \\'x\\' \\n\u00e9') }}", "{% if no %}{{ raise_exception('x') }}{% endif %}fine", "{{ strftime_now('%d %b %Y') }}{{ strftime_now('%Y-%m-%d %A %B %j %H:%M:%S') }}", "{{ range(5, 1) | list }}{{ range(0)|length }}{{ 3 in range(5) }}{{ range(2) == range(0, 2) }}", "{{ raise_exception() }}" .replace("raise_exception()", "1"), "{% set range = 5 %}{{ range }}")
own("whole", "{{- bos_token }}\n{%- for message in messages %}\n    {%- if message['role'] == 'system' %}\n        {{- '<|system|>\\n' + message.content + '<|end|>\\n' }}\n    {%- else %}\n        {{- '<|' + message.role + '|>\\n' ~ message.content|trim ~ eos_token }}\n    {%- endif %}\n{%- endfor %}\n{%- if add_generation_prompt %}\n    {{- '<|assistant|>\\n' }}\n{%- endif %}\n",
    "{% if tools %}# Tools\n{% for tool in tools %}\n{{ tool | tojson(indent=2) }}\n{% endfor %}{% endif %}\n{% set ns = namespace(last=-1) %}\n{% for m in messages %}\n{% if m.role == 'user' %}\n{% set ns.last = loop.index0 %}\n{% endif %}\n{% endfor %}\nlast user: {{ ns.last }}\n")
own("print", "{% print 1, text %}", "{% print 'a' if no else 'b' %}")
# What Jinja2 does not know is a fault of the template unless an if may leave it out: then it is one of the rendering that comes there.
own("unknown filters and tests", *[f"{{% if no %}}{unknown}{{% endif %}}fine" for unknown in (
    "{{ text|nope }}", "{{ text is nope }}", "{{ text|upper|nope(1)|lower }}", "{% for a in list|nope %}{% endfor %}",
    "{% for a in list %}{{ a|nope }}{% endfor %}", "{% for a in list if a|nope %}{% endfor %}", "{% for a in list %}{% else %}{{ a|nope }}{% endfor %}",
    "{% for a in list %}{% if a|nope %}{% endif %}{% endfor %}", "{% macro m(a) %}{{ a|nope }}{% endmacro %}",
    "{% macro m(a=text|nope) %}{% endmacro %}", "{% call dict(a|nope) %}{% endcall %}", "{% call dict(a) %}{{ a|nope }}{% endcall %}",
    "{% call(a=text|nope) dict(a) %}{% endcall %}", "{% with a = text|nope %}{% endwith %}", "{% with a = text %}{{ a|nope }}{% endwith %}",
    "{% set a = text|nope %}", "{% set a %}{{ text|nope }}{% endset %}", "{% set a | nope %}{% endset %}", "{% filter nope %}{% endfilter %}",
    "{% filter upper|nope %}{% endfilter %}", "{% filter upper %}{{ text|nope }}{% endfilter %}", "{% generation %}{{ text|nope }}{% endgeneration %}",
    "{% if yes %}{{ text|nope }}{% endif %}", "{{ [text|nope, {'a': text is nope}] }}")])
own("unknown filters and tests that are not left out", "{% if text|nope %}{% endif %}", "{% if no %}{% elif text is not nope %}{% endif %}",
    "{% if no %}{% else %}{{ text|nope }}{% endif %}", "{% if yes %}{% filter nope %}{% endfilter %}{% endif %}", "{{ text|nope if yes }}",
    "{{ text if text is nope else 1 }}", "{% if yes %}{{ missing.x.y|nope }}{% endif %}")
own("unknown filters and tests beside a condition", "{{ text|nope if no else 'fine' }}", "{{ 'fine' if yes else text is nope }}",
    "{{ ('fine' if yes else 1)|nope }}", "{{ yes or text|nope }}", "{{ [1 if yes else 2, text|nope] }}", "{% set a = text|nope if no %}fine",
    "{% if no %}{% endif %}{{ text|nope }}", "{{ 1 if yes else 2 if text|nope else 3 }}", "{% macro m() %}{{ text|nope if no }}{% endmacro %}fine",
    "{% if no %}{% macro m() %}{% if no %}{{ text|nope }}{% endif %}{% endmacro %}{% endif %}fine")
# Whole numbers beyond 64 bits are written and compared; computing with them is refused here.
own("wide numbers", "{{ wide }}{{ wider }}{{ [wide]|tojson }}{{ {'a': wider}|tojson }}{{ [wide, wider] }}{{ '%s' % wide }}{{ wide|string + 'x' }}",
    "{{ wide is number }}{{ wide is integer }}{{ wide is float }}{{ wide is string }}{{ wide is none }}{{ 'y' if wide else 'n' }}{{ wide|int }}{{ wide|default(1) }}",
    "{{ wide == wide }}{{ wide == wider }}{{ wide == 5 }}{{ wide > 5 }}{{ wider < 5 }}{{ 5 < wide }}{{ wide < wider }}{{ wider <= wider }}{{ wide > 2 }}{{ wide in [wide] }}{{ [wide, 1, wider]|sort }}",
    "{{ wide|float }}{{ wide ~ '' }}{{ {wide: 1}|tojson }}", "{{ wide + 'x' }}", "{{ wide|length }}")
own("nul", "{{ nul }}{{ [nul] }}{{ nul|tojson }}{{ nul|length }}{{ nul|trim }}{{ nul.strip('b') }}{{ nul.split(' ') }}{{ nul|upper }}{{ nul|title }}{{ nul ~ nul }}{{ nul.replace('b', 'c') }}{{ nul|e }}{{ nul.find('b') }}{{ nul|list }}{{ '%s|%5s' % (nul, 'x') }}{{ nul|capitalize }}{{ nul|indent(2) }}{{ nul|wordcount }}{{ nul[1:] }}{{ nul == 'a' }}{{ nul|first }}{{ nul|last }}{{ nul.partition('b') }}{{ nul.splitlines() }}{{ 'a' in nul }}{{ nul|join('-') }}{{ nul|replace(' ', '') }}{{ nul.isspace() }}{{ nul.isalpha() }}{{ nul.center(9, '*') }}")
