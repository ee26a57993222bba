// Keeps the page up to date. Without it the page is whole, and is loaded again every five seconds.
//
// Rules: an event has the HTML of what is inside of main. It is merged into the document, so that an element keeps the
// focus, and a screen reader its place. No row moves while one of them has the focus or the pointer, so that nobody opens
// another lock than the one they were about to. A page that nobody sees has no stream. Whether the page is live follows
// from the age of what it shows, and not from whether something was sent.
'use strict';

(() => {
	const live = document.getElementById('live');
	const state = document.getElementById('state');
	const age = document.getElementById('age');
	const pause = document.getElementById('pause');
	const filter = document.getElementById('filter');
	const only = document.getElementById('waiting');
	const mostKept = 200; // rows of a table that keeps their places
	let source = null;
	let latest = ''; // the data of the latest event
	let chosen = false; // the user has asked for other rows, and has not got them yet
	let paused = false;
	let broken = false; // the stream is
	let again = 0; // the timer of the next try
	let opened = 0; // when the stream was, by Date.now(), as all times
	let heard = false; // it has had an event
	let read = NaN; // when what is shown was read from Redis; NaN if nothing was
	let due = 0; // when something newer should be there

	// date takes the age of what is shown from now on, and how long it takes until something newer is due.
	function date(text) {
		const [passed, left] = text.split(' ').map(Number);
		read = text ? Date.now() - passed : NaN;
		due = Date.now() + (left || 0);
	}

	// tell says whether the page is live, or else how old it is, and why. The age changes all the time, so that it is not
	// in the element that a screen reader reads out.
	function tell() {
		const now = Date.now();
		const fresh = now - read < Number(live.dataset.fresh);
		const [text, bad] = condition(now, fresh);
		const old = fresh || isNaN(read) ? '' : `As of ${duration(now - read)} ago: `;
		if (state.textContent !== text) {
			state.textContent = text;
		}
		age.textContent = old;
		state.parentNode.classList.toggle('bad', bad);
		live.classList.toggle('old', bad);
		live.dataset.old = old + text;
	}

	// condition returns the condition of the page, and whether that is bad.
	function condition(now, fresh) {
		const silent = now - opened >= 3000;
		switch (true) {
		case paused: return ['Paused', false];
		case broken: return ['Not connected, trying again', true];
		case live.querySelector('.problem') !== null: return ['Redis cannot be read', true];
		case !heard && !silent && !(fresh && latest): return ['Connecting', false];
		case fresh: return ['Live', false];
		case now < due: return ['the next sample is not due yet', false];
		}
		return ['Redis does not answer', true];
	}

	function duration(ms) {
		const s = Math.max(0, Math.floor(ms / 1000));
		return (s >= 3600 ? Math.floor(s / 3600) + 'h' : '') + (s >= 60 ? Math.floor(s / 60) % 60 + 'm' : '') + s % 60 + 's';
	}

	function disconnect() {
		clearTimeout(again);
		if (source) {
			source.close();
		}
		source = null;
	}

	function connect() {
		disconnect();
		[broken, heard, opened] = [false, false, Date.now()];
		tell();
		if (paused || document.hidden) {
			return;
		}
		source = new EventSource(live.dataset.events + (filter ? encodeURIComponent(filter.value) : '') +
			(only && only.checked ? '&waiting=1' : ''));
		source.onmessage = (event) => {
			const cut = event.data.indexOf('\n');
			date(event.data.slice(0, cut));
			latest = event.data.slice(cut + 1);
			[broken, heard] = [false, true];
			show(!chosen);
			chosen = false;
			live.removeAttribute('data-undecided');
			tell();
		};
		source.onopen = () => {
			[broken, opened] = [false, Date.now()];
			tell();
		};
		source.onerror = () => {
			broken = true;
			tell();
			if (source && source.readyState === EventSource.CLOSED) {
				again = setTimeout(connect, 5000);
			}
		};
	}

	// show brings the page up to date with the latest event.
	function show(mayKeep) {
		const focused = document.activeElement;
		const fresh = new DOMParser().parseFromString('<main>' + latest + '</main>', 'text/html').querySelector('main');
		live.classList.toggle('kept', mayKeep && keep(fresh));
		merge(live, fresh, true);
		if (focused && focused !== document.activeElement && focused.isConnected) {
			focused.focus({preventScroll: true});
		}
	}

	const rowInUse = () => live.querySelector('tr[data-key]:hover, tr[data-key]:focus-within');

	// keep gives the rows of fresh the places that they have on the page, if one of them is in use, and reports whether
	// that is another order. A row that has left the list keeps its place, too, and a new one comes last.
	function keep(fresh) {
		const used = rowInUse();
		if (!used) {
			return false;
		}
		if (!fresh.querySelector('table')) {
			const table = used.closest('table').cloneNode(true);
			table.tBodies[0].replaceChildren();
			fresh.querySelector('.none').replaceWith(table);
		}
		const body = fresh.querySelector('tbody');
		const rows = new Map(Array.from(body.rows, (row) => [keyOf(row), row]));
		const wanted = Array.from(rows.keys());
		const order = [];
		for (const old of used.parentNode.rows) {
			let row = rows.get(keyOf(old));
			rows.delete(keyOf(old));
			if (!row) {
				row = old.cloneNode(true);
				row.className = 'left';
				row.querySelector('th small').textContent = 'not in the list any more';
			}
			order.push(row);
		}
		while (order.at(-1).className === 'left' && keyOf(order.at(-1)) !== keyOf(used)) {
			order.pop(); // nothing is behind it
		}
		order.push(...Array.from(rows.values()).slice(0, Math.max(0, mostKept - order.length)));
		body.replaceChildren('\n', ...order.flatMap((row) => [row, '\n']));
		return order.some((row, n) => keyOf(row) !== wanted[n]);
	}

	for (const name of ['pointerout', 'focusout']) {
		live.addEventListener(name, () => setTimeout(() => {
			if (live.classList.contains('kept') && !rowInUse()) {
				show(false);
			}
		}));
	}

	const keyOf = (node) => node.nodeType === Node.ELEMENT_NODE ? node.getAttribute('data-key') : null;

	// merge makes the children of old, and its attributes unless it is the outermost element, those of fresh.
	function merge(old, fresh, outermost) {
		if (!outermost) {
			for (const name of old.getAttributeNames()) {
				if (!fresh.hasAttribute(name)) {
					old.removeAttribute(name);
				}
			}
			for (const name of fresh.getAttributeNames()) {
				if (old.getAttribute(name) !== fresh.getAttribute(name)) {
					old.setAttribute(name, fresh.getAttribute(name));
				}
			}
		}
		const children = Array.from(fresh.childNodes);
		const wanted = new Set(children.map(keyOf));
		const keyed = new Map();
		for (const child of Array.from(old.childNodes)) {
			const key = keyOf(child);
			if (key !== null && !wanted.has(key)) {
				child.remove();
			} else if (key !== null) {
				keyed.set(key, child);
			}
		}
		let at = old.firstChild;
		for (const child of children) {
			const key = keyOf(child);
			const same = key !== null ? keyed.get(key) : at && keyOf(at) === null ? at : null;
			if (!same || same.nodeName !== child.nodeName) {
				old.insertBefore(child, at);
				continue;
			}
			if (same === at) {
				at = at.nextSibling;
			} else {
				old.insertBefore(same, at);
			}
			if (same.nodeType === Node.ELEMENT_NODE) {
				merge(same, child, false);
			} else if (same.data !== child.data) {
				same.data = child.data;
			}
		}
		while (at) {
			const next = at.nextSibling;
			at.remove();
			at = next;
		}
	}

	// A click copies what a button is for, or the text in front of it, also where the page is not served over TLS and
	// there is no clipboard.
	live.addEventListener('click', async (event) => {
		const button = event.target.closest('button[data-copy]');
		if (!button) {
			return;
		}
		const what = button.previousElementSibling;
		getSelection().selectAllChildren(what);
		try {
			await navigator.clipboard.writeText(button.dataset.copy || what.textContent);
		} catch {
			if (!document.execCommand('copy')) {
				return; // it is selected
			}
		}
		button.textContent = 'Copied';
		setTimeout(() => { button.textContent = 'Copy'; }, 2000);
	});

	pause.hidden = false;
	pause.addEventListener('click', () => {
		paused = !paused;
		pause.textContent = paused ? 'Resume' : 'Pause';
		connect();
	});
	document.addEventListener('visibilitychange', connect);
	window.addEventListener('pagehide', disconnect);
	window.addEventListener('pageshow', (event) => {
		if (event.persisted) {
			connect();
		}
	});
	if (filter) {
		let typed = 0;
		const choose = (name, value) => {
			const address = new URL(location.href);
			address.searchParams.set(name, value);
			history.replaceState(null, '', address);
			chosen = true;
			connect();
		};
		const apply = () => choose('q', filter.value);
		if (live.hasAttribute('data-undecided')) {
			only.checked = matchMedia('(max-width: 44rem)').matches;
		}
		only.addEventListener('change', () => choose('waiting', only.checked ? '1' : '0'));
		filter.addEventListener('input', () => {
			clearTimeout(typed);
			typed = setTimeout(apply, 200);
		});
		document.getElementById('search').addEventListener('submit', (event) => {
			event.preventDefault();
			clearTimeout(typed);
			apply();
		});
	}
	date(live.dataset.age);
	connect();
	setInterval(tell, 500);
})();
