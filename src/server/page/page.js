'use strict';
// The page of `fovea serve`. It speaks the server's own API (docs/server.md) and nothing else; files stay in this window.

const $ = (id) => document.getElementById(id);
const make = (tag, properties = {}, ...children) => {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
};
const count = (n) => Number(n).toLocaleString('en');
const percent = (share) => (100 * share).toFixed(share < 0.1 ? 1 : 0) + ' %';
const seconds = (s) => (s < 10 ? s.toFixed(2) : s.toFixed(0)) + ' s';

// ---- the server

const here = location.pathname.replace(/[^/]*$/, '');  // a root path in front of the server stays in front
let key = sessionStorage.getItem('key') || '';
let model = { id: '', max_model_len: 0 };

class Refusal extends Error {}

async function call(path, body, signal) {
  const headers = { 'Content-Type': 'application/json' };
  if (key) headers.Authorization = 'Bearer ' + key;
  const reply = await fetch(here + path, body === undefined ? { headers, signal }
    : { method: 'POST', headers, body: JSON.stringify(body), signal });
  if (reply.ok) return reply;
  if (reply.status === 401) $('door').hidden = false;
  let why = reply.status + ' ' + reply.statusText;
  try { why = (await reply.json()).error.message || why; } catch { /* a proxy's page, not the server's words */ }
  throw new Refusal(why);
}

// Calls each(event) for every JSON event of a stream of server-sent events.
async function events(reply, each) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const { value, done } = await reader.read();
    if (done) throw new Refusal('the server ended the answer early');
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith('data:')) continue;
      const data = line.slice(5).trim();
      if (data === '[DONE]') return;
      const event = JSON.parse(data);
      if (event.error) throw new Refusal(event.error.message);
      each(event);
    }
  }
}

async function connect() {
  try {
    const models = (await (await call('v1/models')).json()).data;
    model = models[0];
    const own = (model.fovea && model.fovea.decode_methods || []).map((m) => m.name || m);
    const sparse = own.filter((name) => name !== 'dense');
    const named = (name) => (sparse.length > 1 ? ': ' + name : '');
    const choices = [...sparse.map((name) => ['dense|' + name, 'Dense beside sparse' + named(name)]),
      ...sparse.map((name) => [name, 'Sparse' + named(name)]), ['dense', 'Dense: reads everything'], ['', "The server's own"]];
    $('method').replaceChildren(...choices.map(([value, text]) => make('option', { value, textContent: text })));
    $('model').textContent = model.id + (model.max_model_len ? ', ' + count(model.max_model_len) + ' tokens at most' : '');
    $('door').hidden = true;
    measure();
  } catch (error) {
    $('model').textContent = error.message;
    if (!(error instanceof Refusal) || error.message.startsWith('503')) setTimeout(connect, 1000);  // it is loading
  }
}

// ---- documents

const documents = [];

let pdf = null;  // pdf.js, once a PDF needs it
async function pdf_library() {
  if (pdf) return pdf;
  const url = (id) => URL.createObjectURL(new Blob([$(id).textContent], { type: 'text/javascript' }));
  await new Promise((loaded, failed) =>
    document.head.append(make('script', { src: url('pdf-code'), onload: loaded, onerror: () => failed(new Error('pdf.js')) })));
  pdf = globalThis.pdfjsLib || globalThis['pdfjs-dist/build/pdf'];
  pdf.GlobalWorkerOptions.workerSrc = url('pdf-worker-code');
  return pdf;
}

async function text_of(file) {
  const bytes = await file.arrayBuffer();
  if (!/\.pdf$/i.test(file.name) && file.type !== 'application/pdf') {
    try { return new TextDecoder('utf-8', { fatal: true }).decode(bytes); }
    catch { throw new Error('this is not UTF-8 text'); }
  }
  const library = await pdf_library();
  const book = await library.getDocument({ data: bytes, isEvalSupported: false }).promise;
  const pages = [];
  for (let n = 1; n <= book.numPages; n++) {
    const content = await (await book.getPage(n)).getTextContent();
    pages.push(content.items.map((item) => item.str + (item.hasEOL ? '\n' : '')).join(''));
  }
  const text = pages.join('\n\n').trim();
  if (!text) throw new Error('this PDF has no text, only pictures');
  return text;
}

async function add(files) {
  for (const file of files) {
    const entry = { name: file.name, text: '', note: 'reading' };
    documents.push(entry);
    list();
    try { entry.text = (await text_of(file)).replace(/\r\n?/g, '\n').trim(); entry.note = entry.text ? '' : 'empty'; }
    catch (error) { entry.note = error.message; }
    list();
  }
  measure();
}

// For who has none at hand: a log with two facts in it.
function example() {
  const skies = ['overcast', 'clear', 'broken cloud', 'high thin cloud', 'fog'], sides = ['north', 'east', 'south', 'west'];
  const deeds = ['counted the stores', 'read the soil thermometers', 'repaired the fence by the lower path', 'tested the radio',
    'replaced the paper of the barograph', 'checked the batteries', 'swept the roof'];
  const facts = { 51: ' The secret code of Nina is 48213.', 88: ' The favorite color of Olga is indigo.' };
  const lines = ['Station log.'];
  for (let day = 1; day <= 130; day++)
    lines.push(`Day ${day}. Dawn: ${skies[day * 7 % 5]}, a light air from the ${sides[day * 3 % 4]}, ${day * 11 % 27} degrees. `
      + `We ${deeds[day * 5 % 7]} and ${deeds[(day * 5 + 1 + day % 3) % 7]}.` + (facts[day] || ''));
  documents.push({ name: 'station-log.txt', text: lines.join('\n'), note: '' });
  $('question').value = 'What is the secret code of Nina?';
  list();
  measure();
  open_pane('talk');
  $('question').focus();
}

function list() {
  $('list').replaceChildren(...documents.map((entry, i) => {
    const remove = make('button', { type: 'button', textContent: '×' });
    remove.setAttribute('aria-label', 'Remove ' + entry.name);
    remove.onclick = () => { documents.splice(i, 1); list(); measure(); $('choose').focus(); };
    const name = make('span', { textContent: entry.name });
    if (entry.note) name.append(make('span', { className: 'quiet' + (entry.text ? '' : ' bad'), textContent: ': ' + entry.note }));
    return make('li', {}, name, remove);
  }));
}

const context = () => documents.filter((entry) => entry.text)
  .map((entry, _, all) => (all.length > 1 ? '# ' + entry.name + '\n\n' : '') + entry.text).join('\n\n');

let measuring = null;
async function measure() {
  if (measuring) measuring.abort();
  const mine = measuring = new AbortController();
  if (!context() || !model.id) { $('size').textContent = ''; return; }
  try {
    const counted = await (await call('tokenize', { model: model.id, prompt: context() }, mine.signal)).json();
    const most = model.max_model_len || counted.max_model_len;
    const over = most && counted.count > most;
    $('size').textContent = count(counted.count) + ' tokens' + (over ? ', more than the ' + count(most) + ' that fit' : '');
    $('size').classList.toggle('bad', Boolean(over));
  } catch (error) { if (error.name !== 'AbortError') $('size').textContent = error.message; }
}

// ---- the reading map

// What the answer that is shown reads: `pieces`, the prompt's text by block, and for each token of the answer the ranges of blocks, or
// 'all': of a dense answer each, of a sparse one the first, which comes with the prompt.
const is_dense = (answer) => answer.reads.includes('all') && answer.reads.every((read) => read === 'all' || read === null);

const map = {
  answer: null, spans: [], levels: [], now: [], painting: false,
  token: null,  // whose reads stand out: one that is pointed at; -1: the last so far; null: none, the answer is looked at as a whole

  show(answer, token) {
    const moved = this.answer !== answer;
    if (moved && this.answer) this.answer.box.classList.remove('shown');
    this.answer = answer;
    answer.box.classList.add('shown');
    if (moved || this.spans.length !== answer.pieces.length) this.lay();
    this.token = token;
    this.paint();
  },

  lay() {
    this.spans = this.answer.pieces.map((piece, block) => {
      const span = make('span', { textContent: piece });
      span.dataset.block = block;
      return span;
    });
    this.levels = new Array(this.spans.length).fill(0);
    this.now = [];
    const groups = [];
    for (let i = 0; i < this.spans.length; i += 64) groups.push(make('div', {}, ...this.spans.slice(i, i + 64)));
    $('text').replaceChildren(...groups);
    $('map-body').hidden = false;
  },

  paint() {
    if (this.painting) return;
    this.painting = true;
    requestAnimationFrame(() => { this.painting = false; this.draw(); });
  },

  draw() {
    const { reads, counts, pieces, block_tokens } = this.answer;
    const dense = is_dense(this.answer);
    const most = Math.max(1, ...counts);
    const token = this.token === -1 ? reads.length - 1 : this.token, read_all = reads[token] === 'all';
    for (const span of this.now) span.classList.remove('now');
    this.now = [];
    if (!dense) {
      for (let block = 0; block < this.spans.length; block++) {
        const level = Math.ceil(4 * (counts[block] / most) ** 2);  // squared: what all tokens read stands out from what some did
        if (level === this.levels[block]) continue;
        const span = this.spans[block];
        if (this.levels[block]) span.classList.remove('r' + this.levels[block]);
        if (level) span.classList.add('r' + level);
        this.levels[block] = level;
      }
      for (const [first, last] of read_all ? [] : reads[token] || [])
        for (let block = first; block <= last && block < this.spans.length; block++) {
          this.spans[block].classList.add('now');
          this.now.push(this.spans[block]);
        }
    }
    const read_ever = counts.filter(Boolean).length;
    $('map-note').textContent = !pieces.length ? 'Empty until something is asked.'
      : !reads.length ? count(pieces.length) + ' blocks of ' + block_tokens + ' tokens; nothing is answered yet.'
      : dense ? 'Dense attention reads all ' + count(pieces.length) + ' blocks for every token.'
      : 'Read by any head of any layer: ' + count(read_ever) + ' of ' + count(pieces.length) + ' blocks'
        + (this.token === null ? "; the stronger the colour, the more of the answer's tokens read there."
          : read_all ? ', all with the prompt, of which this token comes.'
          : ', ' + count(this.now.length) + (this.token >= 0 ? ' for the token you point at (yellow).' : ' for the last token (yellow).'));
    this.strip(dense, most);
  },

  // Where most tokens read, but for the ends, which every token reads.
  go_to_peak() {
    const { counts, reads } = this.answer;
    if (!reads.length || is_dense(this.answer)) return;
    let peak = 0, best = 0;
    for (let i = 2; i < counts.length - 4; i++) {
      const here = counts[i - 1] + 2 * counts[i] + counts[i + 1];
      if (here > best) { best = here; peak = i; }
    }
    if (best) this.spans[peak].scrollIntoView({ block: 'center' });
  },

  strip(dense, most) {
    const canvas = $('strip'), height = Math.max(1, Math.round(canvas.clientHeight)), style = getComputedStyle(document.documentElement);
    if (canvas.height !== height) canvas.height = height;
    const pen = canvas.getContext('2d'), color = style.getPropertyValue('--read');
    pen.clearRect(0, 0, canvas.width, height);
    const blocks = this.spans.length;
    if (!blocks) return;
    if (dense) { pen.fillStyle = `rgba(${color}, .55)`; pen.fillRect(0, 0, canvas.width, height); return; }
    const tall = Math.max(1, height / blocks);
    this.answer.counts.forEach((n, block) => {
      if (!n) return;
      pen.fillStyle = `rgba(${color}, ${0.06 + 0.8 * (n / most) ** 2})`;
      pen.fillRect(0, block * height / blocks, canvas.width, tall);
    });
    pen.fillStyle = style.getPropertyValue('--now');
    for (const span of this.now) pen.fillRect(0, span.dataset.block * height / blocks, canvas.width, Math.max(2, tall));
  },

  spot(block) {
    const before = $('text').querySelector('.spot');
    if (before) before.classList.remove('spot');
    if (!(block >= 0) || !this.spans[block]) { $('spot').textContent = ' '; return; }
    this.spans[block].classList.add('spot');
    const first = block * this.answer.block_tokens, n = this.answer.counts[block] || 0;
    $('spot').textContent = `tokens ${count(first)} to ${count(first + this.answer.block_tokens - 1)}: read for ${count(n)} of `
      + `${count(this.answer.reads.length)} tokens`;
  },
};

// ---- questions and answers

const markdown = globalThis.markdownit({ html: false, breaks: true }).disable('image');
markdown.renderer.rules.link_open = (tokens, i, options, env, self) => {
  tokens[i].attrPush(['target', '_blank']);
  tokens[i].attrPush(['rel', 'noopener noreferrer']);
  return self.renderToken(tokens, i, options);
};

const turns = [];
let running = [];  // AbortControllers of the answers that are being written

function messages_of(turn, method) {
  const messages = [];
  const past = turn.follow ? turns.slice(0, turns.indexOf(turn)) : [];
  for (const old of past) {
    const answer = old.answers.find((a) => a.method === method) || old.answers[0];
    messages.push({ role: 'user', content: old.question }, { role: 'assistant', content: answer.text });
  }
  messages.push({ role: 'user', content: turn.question });
  if (turn.context) messages[0] = { role: 'user', content: turn.context + '\n\n' + messages[0].content };
  return messages;
}

const at_bottom = () => $('turns').scrollHeight - $('turns').scrollTop - $('turns').clientHeight < 60;
const limits = () => ({ budget: Number($('budget').value) || 0, length: Number($('length').value) || 256 });

function ask(question) {
  const turn = { question, context: context(), follow: $('follow').checked, answers: [] };
  turns.push(turn);
  $('hello').hidden = true;
  const answers = make('div', { className: 'answers' });
  $('turns').append(make('article', { className: 'turn' }, make('h3', { textContent: question }), answers));
  for (const method of $('method').value.split('|')) {
    const answer = { turn, method, ...limits() };
    answer.box = make('div', { className: 'answer' });
    answers.append(answer.box);
    turn.answers.push(answer);
  }
  // One after the other: the first one's prompt is found by the second, and neither slows the other's figures.
  turn.answers.reduce((before, answer) => before.then(() => write(answer)), Promise.resolve());
  $('turns').scrollTop = $('turns').scrollHeight;
}

async function write(answer) {
  Object.assign(answer, { text: '', words: [], reads: [], counts: [], pieces: [], block_tokens: 16, facts: null });
  const title = { '': "The server's own attention", dense: 'Dense' }[answer.method] || 'Sparse, ' + answer.method;
  const state = make('span', { className: 'quiet', textContent: 'reading' });
  const progress = make('progress', { max: 1 });
  progress.setAttribute('aria-label', 'Prompt read');
  const words = make('div', { className: 'words' }), facts = make('p', { className: 'facts quiet' });
  const deeds = make('div', { className: 'deeds' }), tokens = make('div', { className: 'tokens', hidden: true });
  answer.box.replaceChildren(make('header', {}, make('h4', { textContent: title }), state), progress, words, facts, deeds, tokens);

  const control = new AbortController();
  running.push(control);
  busy();
  const messages = messages_of(answer.turn, answer.method);
  const began = performance.now();
  let first = 0, drawing = false;
  const draw = () => {
    if (drawing) return;
    drawing = true;
    requestAnimationFrame(() => {
      drawing = false;
      const low = at_bottom();
      words.innerHTML = markdown.render(answer.text);
      if (low) $('turns').scrollTop = $('turns').scrollHeight;
    });
  };
  try {
    await lay_prompt(answer, messages, control.signal);
    map.show(answer, -1);
    const body = { model: model.id, messages, stream: true, stream_options: { include_usage: true }, max_tokens: answer.length,
      fovea: { reading_map: true } };
    if (answer.method) body.fovea.decode_method = answer.method;
    if (answer.budget && answer.method !== 'dense') body.fovea.budget_tokens = answer.budget;
    await events(await call('v1/chat/completions', body, control.signal), (event) => {
      const own = event.fovea || {}, choice = event.choices && event.choices[0];
      if (own.block_tokens) answer.block_tokens = own.block_tokens;
      if (own.prompt_tokens) {
        const done = own.computed_tokens || own.cached_tokens || 0;
        progress.value = done / own.prompt_tokens;
        state.textContent = 'reading, ' + count(done) + ' of ' + count(own.prompt_tokens) + ' tokens';
      }
      const text = choice && choice.delta && choice.delta.content;
      if (text) {
        if (!first) { first = performance.now(); progress.remove(); state.textContent = 'answering'; }
        answer.text += text;
        answer.words.push(text);
        note_read(answer, own.read);
        draw();
        if (map.answer === answer) map.show(answer, -1);
      }
      if (event.usage) answer.usage = event.usage;
      if (own.kv_bytes_share !== undefined) answer.facts = own;
    });
    state.textContent = '';
    $('say').textContent = title + ' answered: ' + answer.text;
  } catch (error) {
    state.textContent = error.name === 'AbortError' ? 'stopped' : error.message;
    state.classList.toggle('bad', error.name !== 'AbortError');
    $('say').textContent = state.textContent;
  }
  const low = at_bottom();
  progress.remove();
  running = running.filter((other) => other !== control);
  busy();
  tell(answer, facts, (first || performance.now()) - began);
  finish(answer, deeds, tokens);
  if (low) $('turns').scrollTop = $('turns').scrollHeight;
  if (map.answer === answer && answer.reads.length) { map.show(answer, null); map.go_to_peak(); }
}

// The prompt as the model sees it, cut into the blocks that attention chooses.
async function lay_prompt(answer, messages, signal) {
  const prompt = await (await call('tokenize',
    { model: model.id, messages, add_generation_prompt: true, return_token_strs: true }, signal)).json();
  for (let i = 0; i < prompt.token_strs.length; i += answer.block_tokens)
    answer.pieces.push(prompt.token_strs.slice(i, i + answer.block_tokens).join(''));
  answer.counts = new Array(answer.pieces.length).fill(0);
}

function note_read(answer, read) {
  answer.reads.push(read || null);  // of the last token it may be unknown
  if (read === 'all' || !read) return;
  for (const [first, last] of read)
    for (let block = first; block <= last && block < answer.counts.length; block++) answer.counts[block]++;
}

function tell(answer, line, waited) {
  const parts = ['first word after ' + seconds(waited / 1000)];
  const own = answer.facts, usage = answer.usage;
  if (usage) {
    const cached = usage.prompt_tokens_details && usage.prompt_tokens_details.cached_tokens || 0;
    parts.push(count(usage.prompt_tokens) + ' tokens read' + (cached ? ', ' + count(cached) + ' of them before' : ''));
    if (own && own.decode_s > 0 && usage.completion_tokens > 1)
      parts.push(((usage.completion_tokens - 1) / own.decode_s).toFixed(1) + ' tokens/s');
  }
  if (own) parts.push(percent(own.kv_bytes_share) + ' of K and V read');
  line.textContent = parts.join(' · ');
}

function finish(answer, deeds, tokens) {
  const button = (text, act) => {
    const b = make('button', { type: 'button', textContent: text });
    b.onclick = act;
    deeds.append(b);
    return b;
  };
  deeds.replaceChildren();
  button('Retry', () => write(Object.assign(answer, limits())));
  button('Show on the map', () => { map.show(answer, null); open_pane('map'); map.go_to_peak(); });
  if (!answer.words.length || is_dense(answer)) return;
  const look = button('Word by word', () => {
    tokens.hidden = !tokens.hidden;
    look.setAttribute('aria-expanded', String(!tokens.hidden));
    map.show(answer, null);
  });
  look.setAttribute('aria-expanded', 'false');
  tokens.replaceChildren(...answer.words.map((word, i) => {
    const span = make('span', { textContent: word, tabIndex: i ? -1 : 0 });
    const point = () => {
      for (const other of tokens.querySelectorAll('.on')) other.classList.remove('on');
      span.classList.add('on');
      map.show(answer, i);
    };
    span.onmouseenter = span.onfocus = point;
    span.onkeydown = (event) => {
      const next = { ArrowRight: span.nextSibling, ArrowLeft: span.previousSibling }[event.key];
      if (next) { span.tabIndex = -1; next.tabIndex = 0; next.focus(); event.preventDefault(); }
    };
    return span;
  }));
}

function busy() {
  $('stop').hidden = running.length === 0;
  $('send').hidden = running.length > 0;
}

// ---- what the user does

function open_pane(name) {
  for (const section of document.querySelectorAll('main > section')) section.classList.toggle('open', section.id === name);
  for (const tab of $('tabs').children) tab.setAttribute('aria-current', String(tab.dataset.pane === name));
  if (name === 'map' && map.answer) map.paint();  // what is hidden has no height to draw in
}

$('tabs').onclick = (event) => { if (event.target.dataset.pane) open_pane(event.target.dataset.pane); };
$('choose').onclick = () => $('files').click();
$('example').onclick = example;
$('files').onchange = () => { add([...$('files').files]); $('files').value = ''; };
for (const name of ['dragenter', 'dragover', 'dragleave', 'drop'])
  document.addEventListener(name, (event) => {
    event.preventDefault();
    $('drop').classList.toggle('over', name === 'dragenter' || name === 'dragover');
    if (name === 'drop') add([...event.dataTransfer.files]);
  });
$('ask').onsubmit = (event) => {
  event.preventDefault();
  const question = $('question').value.trim();
  if (!question || running.length || !model.id) return;
  $('question').value = '';
  ask(question);
};
$('question').onkeydown = (event) => {
  if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) { event.preventDefault(); $('ask').requestSubmit(); }
};
$('settings').onsubmit = (event) => event.preventDefault();
$('stop').onclick = () => { for (const control of running) control.abort(); $('question').focus(); };
document.addEventListener('keydown', (event) => { if (event.key === 'Escape' && running.length) $('stop').click(); });
$('door').onsubmit = (event) => {
  event.preventDefault();
  key = $('key').value;
  sessionStorage.setItem('key', key);
  $('key').value = '';
  connect();
};
$('text').onmouseover = (event) => map.spot(Number(event.target.dataset.block ?? -1));
$('text').onmouseleave = () => map.spot(-1);
const block_at = (event) => Math.floor(event.offsetY / $('strip').clientHeight * map.spans.length);
$('strip').onmousemove = (event) => map.spot(block_at(event));
$('strip').onmouseleave = () => map.spot(-1);
$('strip').onclick = (event) => map.spans[block_at(event)]?.scrollIntoView({ block: 'center' });
addEventListener('resize', () => { if (map.answer) map.paint(); });

open_pane('talk');
connect();
