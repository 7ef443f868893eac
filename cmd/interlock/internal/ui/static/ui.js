// Brings the page up to date by server-sent events, and lets ages and leases pass. The
// page works without it, by reloading.
'use strict';
(() => {
  const live = document.getElementById('live');
  if (!live || !window.EventSource) return;
  const said = document.getElementById('said');
  const summary = document.getElementById('summary') || document.getElementById('held');
  const quiet = 10000; // ms between two things that a screen reader is told
  let ahead = Date.now() - Number(live.dataset.now); // this clock before the server's
  let source = null, retry = 0, told = summary ? summary.textContent : '', toldAt = 0;

  // These three say the same as durationText, sinceText and leftText in read.go.
  function duration(ms) {
    const s = Math.floor(Math.max(0, ms) / 1000);
    if (s < 60) return `${s} s`;
    if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60} s`;
    if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor(s % 3600 / 60)} min`;
    return `${Math.floor(s / 86400)} d ${Math.floor(s % 86400 / 3600)} h`;
  }
  const since = (ms, now) => ms === 0 ? 'unknown' : duration(now - ms);
  const left = (ms, now) => ms === 0 ? 'never ends' : ms <= now ? 'over' : duration(ms - now);

  function write(part, text) {
    if (part && part.textContent !== text) part.textContent = text;
  }

  function tick() {
    const now = Date.now() - ahead;
    for (const part of document.querySelectorAll('[data-since]')) write(part, since(Number(part.dataset.since), now));
    for (const part of document.querySelectorAll('[data-end]')) write(part, left(Number(part.dataset.end), now));
    if (said && summary && summary.textContent !== told && now - toldAt > quiet) {
      told = summary.textContent;
      toldAt = now;
      said.textContent = told;
    }
  }

  // rowOf makes an element of a row's HTML, which the server has escaped.
  function rowOf(html) {
    const t = document.createElement('template');
    t.innerHTML = html;
    return t.content.firstElementChild;
  }

  // patch changes a table to what the server says. Rows that are as they were are not
  // replaced; the focus stays in its row.
  function patch(body, list) {
    const focused = body.contains(document.activeElement) && document.activeElement.closest('tr').id;
    const known = new Map();
    for (const row of body.children) known.set(row.id, row);
    for (const id of list.order) {
      const old = known.get(id);
      if (list.rows[id] !== undefined) {
        const row = rowOf(list.rows[id]);
        if (old) old.replaceWith(row);
        else row.classList.add('new');
        known.set(id, row);
      }
    }
    const stay = new Set(list.order);
    for (const [id, row] of known) if (!stay.has(id)) row.remove();
    let next = body.firstElementChild;
    for (const id of list.order) {
      const row = known.get(id);
      if (!row) continue;
      if (row === next) next = row.nextElementSibling;
      else body.insertBefore(row, next);
    }
    if (focused && !body.contains(document.activeElement)) known.get(focused)?.querySelector('a')?.focus({ preventScroll: true });
  }

  function show(update) {
    ahead = Date.now() - update.now;
    for (const [id, list] of Object.entries(update.lists)) {
      const body = document.getElementById(id);
      if (body) patch(body, list);
    }
    for (const [id, text] of Object.entries(update.texts)) write(document.getElementById(id), text);
    for (const [id, hidden] of Object.entries(update.hidden)) {
      const part = document.getElementById(id);
      if (part) part.hidden = hidden;
    }
    if (update.hidden.problem) state('on', 'live');
    else state('off', 'out of date');
    tick();
  }

  function state(name, text) {
    live.className = `live ${name}`;
    write(live, text);
  }

  function close() {
    clearTimeout(retry);
    if (source) source.close();
    source = null;
  }

  function open() {
    close();
    const s = source = new EventSource(live.dataset.events);
    s.onopen = () => state('on', 'live');
    s.onmessage = (event) => show(JSON.parse(event.data));
    s.onerror = () => {
      state('off', 'not connected, trying again');
      // The browser tries again by itself unless the server has refused.
      if (s.readyState === EventSource.CLOSED) retry = setTimeout(open, 5000);
    };
  }

  // A page that is not seen is not kept up to date: nothing is read from Redis for it,
  // and it leaves the browser's few connections to others.
  function seen() {
    if (document.hidden) close();
    else if (!source) open();
  }
  document.addEventListener('visibilitychange', seen);
  window.addEventListener('pagehide', close);
  window.addEventListener('pageshow', seen);
  setInterval(tick, 1000);
  seen();
})();
