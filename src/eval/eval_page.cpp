#include "eval/eval_page.h"

#include "eval/eval_plot.h"
#include "eval/eval_table.h"
#include "eval/html.h"

#include <nlohmann/json.hpp>

#include <algorithm>

namespace fovea {
namespace {

const char* const kStyle = R"html(:root { --accent:#0068a6 }
main { max-width:1240px }
.lead { color:var(--dim); margin:0 0 20px }
.chips { display:flex; flex-wrap:wrap; gap:6px; margin:0 0 8px; align-items:center }
.chips span { color:var(--dim); margin-right:4px }
.chips button { all:unset; cursor:pointer; padding:3px 12px; border:1px solid var(--line); border-radius:99px }
.chips button:hover { background:var(--soft) }
.chips button:focus-visible { outline:2px solid var(--accent) }
.chips button.on { background:var(--ink); border-color:var(--ink); color:#fff }
.plot { overflow-x:auto }
.plot svg { display:block; max-width:100%; height:auto; font-family:"DejaVu Sans", system-ui, sans-serif }
.plot [data-item] { cursor:default }
.plot [data-item].hot { stroke:var(--ink); stroke-width:2 }
#lengths { margin-top:24px }
.wide { overflow-x:auto }
table { border-collapse:collapse; width:100%; font-variant-numeric:tabular-nums }
th, td { padding:3px 8px; font-size:13px; text-align:right; white-space:nowrap; border-bottom:1px solid var(--line) }
th { font-weight:600; cursor:pointer; user-select:none; position:sticky; top:0; background:#fff; border-bottom:2px solid var(--ink) }
th:hover { color:var(--accent) }
th.word, td.word { text-align:left }
th.up::after, th.down::after { content:"↑"; position:absolute; margin-left:1px; color:var(--accent) }
th.down::after { content:"↓" }
tr.hot td { background:var(--soft) }
td a { color:var(--accent) }
.bar { vertical-align:middle; margin-left:8px }
.note { color:var(--dim); font-size:13px; max-width:820px; margin-top:18px }
#tip b { display:block; font-weight:600 }
#tip span { display:block; color:var(--dim) }
)html";

const char* const kScript = R"html(const rows = page.rows;
const $ = id => document.getElementById(id);
const pct = x => (100 * x).toFixed(1) + ' %', f3 = x => x === null ? '–' : x.toFixed(3), f5 = x => x === null ? '–' : x.toFixed(5);
const varies = key => rows.some(r => r[key] !== rows[0][key]);
const prefills = rows.some(r => r.prefill_method !== 'dense'), traced = rows.some(r => r.mass !== null),
  compared = rows.some(r => r.agreement !== null);
const columns = [
  { name: 'tokens', key: 'length', text: r => r.length.toLocaleString('en') },
  ...(prefills ? [{ name: 'prefill', key: 'prefill_method', word: true, text: r => r.prefill_method }] : []),
  { name: 'decode', key: 'decode_method', word: true, text: r => r.decode_method },
  { name: 'budget', key: 'budget_tokens', text: r => r.budget_tokens || '–' },
  ...(varies('block_size') ? [{ name: 'block', key: 'block_size', text: r => r.block_size }] : []),
  ...(prefills ? [{ name: 'prefill pairs', key: 'prefill_share', text: r => pct(r.prefill_share) }] : []),
  { name: 'KV bytes', key: 'kv_bytes_share', text: r => pct(r.kv_bytes_share) },
  { name: 'exact', key: 'exact', text: r => f3(r.exact) },
  { name: '95 % interval', key: 'low', text: r => f3(r.low) + ' – ' + f3(r.high), bar: true },
  { name: 'right', key: 'right', text: r => r.right + ' / ' + r.total },
  ...(compared ? [{ name: 'agree', key: 'agreement', text: r => f3(r.agreement) },
    { name: 'differ at', key: 'first_difference', text: r => r.first_difference === null ? '–' : r.first_difference.toFixed(1) },
    { name: 'KL', key: 'kl', text: r => f5(r.kl) }, { name: 'KL 99 %', key: 'kl_p99', text: r => f5(r.kl_p99) }] : []),
  ...(traced ? [{ name: 'mass', key: 'mass', text: r => f3(r.mass) }, { name: 'recall', key: 'recall', text: r => f3(r.recall) }] : []),
  ...(page.links.length ? [{ name: 'trace', key: 'trace', word: true, text: r => '' }] : []),
];
let task = 'all', length = 0, sort = { at: -1, down: false };
const bar = r => `<svg class="bar" width="94" height="10"><rect x="2" y="4.5" width="90" height="1" fill="#e4e6ea"/>
  <rect x="${2 + 90 * r.low}" y="3" width="${90 * (r.high - r.low)}" height="4" fill="#a9c6dc"/>
  <rect x="${1 + 90 * r.exact}" y="1" width="2" height="8" fill="#0068a6"/></svg>`;  // figures alone: no text to escape
function heat(i, on) {
  for (const m of document.querySelectorAll('.plot [data-item="' + i + '"]')) m.classList.toggle('hot', on);
  const tr = $('row' + i);
  if (tr) tr.classList.toggle('hot', on);
}
function fill() {
  const head = $('head'), body = $('body');
  head.replaceChildren(...columns.map((c, at) => {
    const th = el('th', (c.word ? 'word ' : '') + (sort.at === at ? (sort.down ? 'down' : 'up') : ''), c.name);
    th.onclick = () => { sort = { at, down: sort.at === at ? !sort.down : !c.word }; fill(); };
    return th;
  }));
  const shown = rows.map((r, i) => [r, i]).filter(([r]) => r.task === task && (!length || r.length === length));
  if (sort.at >= 0) {
    const key = columns[sort.at].key, sign = sort.down ? -1 : 1;
    shown.sort(([a], [b]) => sign * (a[key] < b[key] ? -1 : a[key] > b[key] ? 1 : 0));
  }
  body.replaceChildren(...shown.map(([r, i]) => {
    const tr = el('tr'); tr.id = 'row' + i;
    for (const c of columns) {
      const td = el('td', c.word ? 'word' : '', c.text(r));
      if (c.bar) td.insertAdjacentHTML('beforeend', bar(r));
      for (const l of page.links) {
        if (c.key !== 'trace' || l.run !== r.run) continue;
        const a = el('a', '', 'open');
        a.href = l.file;
        td.append(a);
      }
      tr.append(td);
    }
    tr.onmouseenter = () => heat(i, true);
    tr.onmouseleave = () => heat(i, false);
    return tr;
  }));
}
function choose(group, name) {
  for (const b of $(group).querySelectorAll('button')) b.classList.toggle('on', b.dataset.name === String(name));
}
function chip(group, name, text, act) {
  const b = el('button', '', text);
  b.dataset.name = name;
  b.onclick = () => act(name);
  $(group).append(b);
}
function show(name) {
  task = name;
  choose('tasks', name);
  for (const p of document.querySelectorAll('.plot')) p.hidden = p.dataset.task !== name;
  fill();
}
for (const p of document.querySelectorAll('.plot')) chip('tasks', p.dataset.task, p.dataset.task, show);
const lengths = [...new Set(rows.map(r => r.length))].sort((a, b) => a - b);
const take = n => { length = n; choose('lengths', n); fill(); };
for (const n of [0, ...lengths]) chip('lengths', n, n ? n.toLocaleString('en') : 'all', take);
for (const m of document.querySelectorAll('.plot [data-item]')) {
  const i = m.dataset.item, r = rows[i];
  m.onmouseenter = () => {
    const lines = [
      r.length.toLocaleString('en') + ' tokens, ' + (r.task === 'all' ? 'all tasks' : r.task),
      'exact ' + f3(r.exact) + ' (' + r.right + ' of ' + r.total + '; 95 %: ' + f3(r.low) + ' – ' + f3(r.high) + ')',
      'KV bytes ' + pct(r.kv_bytes_share) + (prefills ? ', prefill pairs ' + pct(r.prefill_share) : ''),
      ...(r.agreement === null ? [] : ['equal to dense attention ' + f3(r.agreement) + ', KL ' + f5(r.kl) + ' nats']),
      ...(r.mass === null ? [] : ['attention mass held ' + f3(r.mass) + ', recall ' + f3(r.recall)])];
    tip.replaceChildren(el('b', '', r.label), ...lines.map(t => el('span', '', t)));
    heat(i, true);
  };
  m.onmousemove = place_tip;
  m.onmouseleave = () => { tip.style.display = 'none'; heat(i, false); };
}
take(0);
show('all');
)html";

std::vector<std::string> tasks_of(const std::vector<EvalRow>& rows) {
  std::vector<std::string> tasks = {"all"};
  for (const EvalRow& r : rows) {
    if (std::find(tasks.begin(), tasks.end(), r.task) == tasks.end()) tasks.push_back(r.task);
  }
  std::sort(tasks.begin() + 1, tasks.end());
  return tasks;
}

// Runs are numbered in the order of their rows, so that rows and links can name them.
nlohmann::ordered_json page_data(const EvalPage& page) {
  std::vector<EvalRun> runs;
  const auto number_of = [&](const EvalRun& run) {
    const auto at = std::find(runs.begin(), runs.end(), run);
    if (at != runs.end()) return at - runs.begin();
    runs.push_back(run);
    return static_cast<std::ptrdiff_t>(runs.size()) - 1;
  };
  nlohmann::ordered_json rows = eval_json(page.rows);
  for (size_t i = 0; i < page.rows.size(); ++i) {
    rows[i]["label"] = run_label(page.rows[i].run);
    rows[i]["run"] = number_of(page.rows[i].run);
  }
  auto links = nlohmann::ordered_json::array();
  for (const EvalLink& l : page.links) links.push_back({{"run", number_of(l.run)}, {"file", l.file}});
  return {{"rows", rows}, {"links", links}};
}

}  // namespace

std::string eval_html(const EvalPage& page) {
  std::string html = html_head("answers against what was read", kStyle);
  html += "<h1>Answers against what was read</h1>\n<p class=\"lead\">" + html_escaped(page.about) +
          "</p>\n<div class=\"chips\" id=\"tasks\"><span>questions</span></div>\n";
  for (const std::string& task : tasks_of(page.rows))
    html +=
        "<div class=\"plot\" data-task=\"" + html_escaped(task) + "\">" + drawing_svg(eval_plot(page.rows, task, {})) + "</div>\n";
  html +=
      "<div class=\"chips\" id=\"lengths\"><span>tokens</span></div>\n<div class=\"wide\"><table><thead><tr "
      "id=\"head\"></tr></thead><tbody id=\"body\"></tbody></table></div>\n"
      "<p class=\"note\">An answer is right if it equals the expected text and the model stopped there. KV bytes are counted: the "
      "K and V "
      "that the "
      "question's and the answer's tokens read, and the summaries that were scanned to choose them, against what dense attention "
      "reads for "
      "the same tokens. Click a column to sort by it.</p>\n";
  if (std::any_of(page.rows.begin(), page.rows.end(), [](const EvalRow& r) { return r.agreement.has_value(); }))
    html +=
        "<p class=\"note\">Agreement compares a run with dense prefill and decode of the same questions: the share of answers that "
        "are "
        "equal token for token, how many tokens the others have before they differ, and the KL divergence of the next token's "
        "distribution from dense attention's along its own answers, in nats (mean and 99th percentile).</p>\n";
  return html + html_end(page_data(page), kScript);
}

}  // namespace fovea
