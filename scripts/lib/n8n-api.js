'use strict';

// What a person does in n8n's editor, done through the same addresses that the editor uses.

const { until } = require('./wait');

const OWNER = { email: 'owner@example.com', firstName: 'Olive', lastName: 'Owner', password: 'Lock-Owner-1' };

/**
 * Signs in as the owner, whom it sets up at the first time.
 *
 * @param {string} url the server's address
 * @returns {Promise<N8nApi>}
 */
async function signIn(url) {
  const api = new N8nApi(url);
  const setUp = await api.send('POST', '/rest/owner/setup', OWNER);
  if (!setUp.ok)
    await api.request('POST', '/rest/login', { emailOrLdapLoginId: OWNER.email, password: OWNER.password });
  return api;
}

class N8nApi {
  /** @param {string} url */
  constructor(url) {
    this.url = url;
    this.cookie = '';
  }

  /** One request with the session's cookie; answers the raw response. */
  async send(method, route, body) {
    const response = await fetch(this.url + route, {
      method,
      headers: { cookie: this.cookie, ...(body === undefined ? {} : { 'content-type': 'application/json' }) },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
    const session = response.headers.getSetCookie().find((cookie) => cookie.startsWith('n8n-auth='));
    if (session) this.cookie = session.split(';')[0];
    return response;
  }

  /** One request whose answer must be well; gives its `data`. */
  async request(method, route, body) {
    const response = await this.send(method, route, body);
    const text = await response.text();
    if (!response.ok) throw new Error(`${method} ${route}: ${response.status} ${text.slice(0, 1000)}`);
    return text === '' ? undefined : JSON.parse(text).data;
  }

  /** @returns {Promise<{ id: string, name: string }>} what a node's `credentials` entry wants */
  async createCredential({ name, type, data }) {
    const { id } = await this.request('POST', '/rest/credentials', { name, type, data });
    return { id, name };
  }

  /** @returns {Promise<string>} the new workflow's id */
  async createWorkflow({ name, nodes, connections, settings = {} }) {
    const { id } = await this.request('POST', '/rest/workflows', { name, nodes, connections, settings, active: false });
    return id;
  }

  /** Makes a workflow live, and waits until its webhooks answer. */
  async activate(id) {
    const workflow = await this.request('GET', `/rest/workflows/${id}`);
    const { versionId } = workflow;
    const response = await this.send('POST', `/rest/workflows/${id}/activate`, { versionId });
    // n8n 1.x has no such address.
    if (response.status === 404) await this.request('PATCH', `/rest/workflows/${id}`, { active: true, versionId });
    else if (!response.ok) throw new Error(`activating workflow ${id}: ${response.status} ${await response.text()}`);
    for (const node of workflow.nodes.filter((one) => one.type === 'n8n-nodes-base.webhook')) {
      await this.waitForWebhook(node.parameters.path, node.parameters.httpMethod ?? 'GET');
    }
  }

  /**
   * n8n says "active" some moments before the address answers. This asks by a wrong method, and so without starting
   * the workflow: n8n then says which method is the right one, once it knows the address.
   */
  async waitForWebhook(path, method) {
    await until(
      `webhook ${method} ${path}`,
      async () => {
        const response = await fetch(`${this.url}/webhook/${path}`, { method: method === 'DELETE' ? 'PUT' : 'DELETE' });
        return new RegExp(`Did you mean to make an? .*${method}`).test(await response.text());
      },
      { timeoutMs: 60_000, everyMs: 100 },
    );
  }

  async deactivate(id) {
    const response = await this.send('POST', `/rest/workflows/${id}/deactivate`, {});
    if (response.status === 404) {
      const { versionId } = await this.request('GET', `/rest/workflows/${id}`);
      await this.request('PATCH', `/rest/workflows/${id}`, { active: false, versionId });
    } else if (!response.ok)
      throw new Error(`deactivating workflow ${id}: ${response.status} ${await response.text()}`);
  }

  /** @returns {Promise<Array<{ id: string, status: string, startedAt: string, stoppedAt: string | null }>>} newest first, running ones included */
  async executions(workflowId) {
    const filter = encodeURIComponent(JSON.stringify({ workflowId }));
    return (await this.request('GET', `/rest/executions?filter=${filter}&limit=100`)).results;
  }

  /** One execution with all its data unpacked. */
  async execution(id) {
    const execution = await this.request('GET', `/rest/executions/${id}`);
    return { ...execution, data: typeof execution.data === 'string' ? unflatten(execution.data) : execution.data };
  }

  /** What the editor's Stop button does. */
  async stopExecution(id) {
    return await this.request('POST', `/rest/executions/${id}/stop`);
  }

  /** The node types that this n8n has loaded. */
  async nodeTypes() {
    const response = await this.send('GET', '/types/nodes.json');
    return await response.json();
  }
}

/**
 * Reads n8n's stored run data: a JSON array in which every string inside an object or array is the index of the
 * entry that stands there.
 *
 * @param {string} text
 */
function unflatten(text) {
  const entries = JSON.parse(text);
  const done = new Map();
  const at = (index) => {
    const entry = entries[index];
    if (entry === null || typeof entry !== 'object') return entry;
    if (done.has(index)) return done.get(index);
    const copy = Array.isArray(entry) ? [] : {};
    done.set(index, copy);
    for (const [name, value] of Object.entries(entry))
      copy[name] = typeof value === 'string' ? at(Number(value)) : value;
    return copy;
  };
  return at(0);
}

module.exports = { signIn, N8nApi, OWNER };
