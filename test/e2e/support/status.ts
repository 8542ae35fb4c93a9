// Asks the node itself about a key, as a person would.

import type { N8nApi, CredentialReference } from '../../../scripts/lib/n8n-api';
import { Flow } from './flow';
import { goLive, unique } from './n8n';

/** A live workflow that tells what the node says about a key. */
export async function statusOf(
  n8n: N8nApi,
  redis: CredentialReference,
): Promise<(key: string) => Promise<Record<string, unknown>>> {
  const path = unique('status');
  const flow = new Flow(unique('Status'), redis);
  flow.chain(
    flow.answeringWebhook(path),
    flow.lock('Status', { operation: 'getStatus', key: '={{ $json.body.key }}' }),
  );
  const live = await goLive(n8n, flow);
  return async (key) => {
    const { body } = await live.call(path, { key });
    return (body as Array<{ lock: Record<string, unknown> }>)[0].lock;
  };
}
